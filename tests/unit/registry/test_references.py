"""Image references: the grammar, the defaults, and what people are told about a wrong one."""

from __future__ import annotations

import string
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stokerd.registry.references import MAX_TEXT, InvalidReference, Reference, parse_reference

HEX = "0123456789abcdef" * 4
SHA256 = f"sha256:{HEX}"


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("ubuntu", "docker.io/library/ubuntu:latest"),
        ("ubuntu:22.04", "docker.io/library/ubuntu:22.04"),
        ("team/app", "docker.io/team/app:latest"),
        ("a/b/c", "docker.io/a/b/c:latest"),
        ("docker.io/ubuntu", "docker.io/library/ubuntu:latest"),
        ("index.docker.io/ubuntu", "docker.io/library/ubuntu:latest"),
        ("index.docker.io/team/app:1", "docker.io/team/app:1"),
        ("registry-1.docker.io/library/ubuntu", "registry-1.docker.io/library/ubuntu:latest"),
        ("quay.io/team/app:v1.2-rc.3", "quay.io/team/app:v1.2-rc.3"),
        ("localhost/app", "localhost/app:latest"),
        ("localhost:5000/app", "localhost:5000/app:latest"),
        # Without a slash nothing is a host: this is a tag.
        ("localhost:5000", "docker.io/library/localhost:5000"),
        ("host:5000/app", "host:5000/app:latest"),
        ("127.0.0.1:5000/app:x", "127.0.0.1:5000/app:x"),
        ("[::1]:5000/app", "[::1]:5000/app:latest"),
        ("[2001:db8::1]/app", "[2001:db8::1]/app:latest"),
        # No repository path has upper-case letters, so this is a host.
        ("Registry/app", "Registry/app:latest"),
        ("Registry.Example.com/app", "Registry.Example.com/app:latest"),
        ("xn--bcher-kva.example/app", "xn--bcher-kva.example/app:latest"),
        ("a.b/c__d/e-----f.g_h", "a.b/c__d/e-----f.g_h:latest"),
        ("app:_tag", "docker.io/library/app:_tag"),
        (f"app@{SHA256}", f"docker.io/library/app@{SHA256}"),
        (f"quay.io/app:1@{SHA256}", f"quay.io/app:1@{SHA256}"),
        (f"app@sha512:{HEX * 2}", f"docker.io/library/app@sha512:{HEX * 2}"),
        (f"app@sha384:{HEX}{HEX[:32]}", f"docker.io/library/app@sha384:{HEX}{HEX[:32]}"),
        (f"docker.io/library/{HEX}", f"docker.io/library/{HEX}:latest"),
        (f"docker.io/library/sha256:{HEX}", f"docker.io/library/sha256:{HEX}"),
        ("app:" + "t" * 128, "docker.io/library/app:" + "t" * 128),
        ("x.io/" + "p" * 255, "x.io/" + "p" * 255 + ":latest"),
    ],
)
def test_valid_references_have_one_canonical_form(text: str, canonical: str) -> None:
    reference = parse_reference(text)
    assert str(reference) == canonical
    assert parse_reference(canonical) == reference


@pytest.mark.parametrize(
    ("text", "at", "said"),
    [
        ("", None, "empty"),
        (" ubuntu", 0, "white space"),
        ("ubuntu\n", 6, "white space"),
        ("ubuntu latest", 6, "white space"),
        ("ubu\x00ntu", 3, r"\x00"),
        ("ubu\x1b[31mntu", 3, r"\x1b"),
        ("übuntu", 0, "ASCII"),
        ("https://quay.io/app", None, 'leave out "https://"'),
        ("docker://app", None, 'leave out "docker://"'),
        ("Ubuntu", 0, 'did you mean "ubuntu"?'),
        ("quay.io/Team/App:V1", 8, 'did you mean "quay.io/team/app:V1"?'),
        ("quay.io/team/", 12, "remove the trailing slash"),
        ("quay.io/", 8, "name of the repository is missing"),
        ("quay.io//app", 8, "extra slash"),
        ("/app", 0, "extra slash"),
        ("app:", 4, "tag after"),
        ("app:-x", 4, "begins with none"),
        ("app:a:b", 5, "a tag is made of"),
        ("team/app:a/b", 10, "the tag comes last"),
        ("app:" + "t" * 129, 132, "129 characters"),
        ("x.io/" + "p" * 256, 5, "256 characters"),
        ("p" * 248, 0, "256 characters"),
        ("app_", 3, "may stand between"),
        ("a..b", 1, "may stand between"),
        ("a_-b", 1, "may stand between"),
        ("a___b", 1, "may stand between"),
        ("app+x", 3, "a-z, 0-9"),
        ("host:/app", 4, "a port"),
        ("host:port/app", 5, "digits"),
        ("host:0/app", 5, "between 1 and 65535"),
        ("host:65536/app", 5, "between 1 and 65535"),
        ("host:1:2/app", 6, "digits"),
        ("-host.io/app", 0, "a host is made of"),
        ("ho_st.io/app", 2, "a host is made of"),
        ("host-.io/app", 4, "a host is made of"),
        ("host..io/app", 5, "a host is made of"),
        ("[::g]/app", 1, "IPv6"),
        ("[::1/app", 1, "IPv6"),
        ("[fe80::1%eth0]/app", 1, "IPv6"),
        ("[::1]x/app", 5, "a port"),
        ("app@", 4, "a digest is"),
        ("app@latest", 4, 'a tag is written after ":"'),
        (f"app@md5:{HEX[:32]}", 4, "a digest is"),
        (f"app@{SHA256[:-1]}", 74, "64 digits, this one has 63"),
        (f"app@{SHA256}0", 75, "64 digits, this one has 65"),
        (f"app@sha256:{HEX.upper()}", 21, "lower case"),
        (f"app@{SHA256}:tag", 75, "0-9 and a-f"),
        (f"app@{SHA256}@{SHA256}", 75, "0-9 and a-f"),
        (HEX, None, "image id"),
        (SHA256, None, "image id"),
    ],
)
def test_wrong_references_are_refused_at_the_wrong_part(text: str, at: int | None, said: str) -> None:
    with pytest.raises(InvalidReference) as caught:
        parse_reference(text)
    error = caught.value
    assert error.at == at
    assert said in str(error)
    if at is not None:
        assert f"at character {at + 1} (" in str(error)
    assert str(error).isprintable()
    assert error.reason == "InvalidReference"


@pytest.mark.parametrize(
    "text",
    [
        "robot:S3cret@quay.io/app",
        "robot:S3c@ret@quay.io/app",
        "https://robot:S3cret@quay.io/app",
        "https://robot:S3c/ret@quay.io/app",
    ],
)
def test_passwords_in_references_are_not_repeated(text: str) -> None:
    with pytest.raises(InvalidReference) as caught:
        parse_reference(text)
    assert "S3c" not in str(caught.value)
    assert "ret@" not in str(caught.value).replace("[redacted]@", "")
    assert "S3c" not in caught.value.text


@pytest.mark.parametrize(
    ("text", "familiar", "pull_spec", "host"),
    [
        ("ubuntu", "ubuntu:latest", "docker.io/library/ubuntu:latest", "registry-1.docker.io"),
        ("docker.io/team/app:1", "team/app:1", "docker.io/team/app:1", "registry-1.docker.io"),
        ("docker.io/library/a/b", "library/a/b:latest", "docker.io/library/a/b:latest", "registry-1.docker.io"),
        ("quay.io/app:1", "quay.io/app:1", "quay.io/app:1", "quay.io"),
        (f"app:1@{SHA256}", f"app:1@{SHA256}", f"docker.io/library/app@{SHA256}", "registry-1.docker.io"),
        # Shortened, these would be read as a host or as an image id.
        ("docker.io/a.b/c", "docker.io/a.b/c:latest", "docker.io/a.b/c:latest", "registry-1.docker.io"),
        ("docker.io/localhost/c", "docker.io/localhost/c:latest", None, "registry-1.docker.io"),
        (f"docker.io/library/sha256:{HEX}", f"docker.io/library/sha256:{HEX}", None, "registry-1.docker.io"),
    ],
)
def test_forms_of_a_reference(text: str, familiar: str, pull_spec: str | None, host: str) -> None:
    reference = parse_reference(text)
    assert reference.familiar == familiar
    assert parse_reference(reference.familiar) == reference
    assert reference.pull_spec == (pull_spec or str(reference))
    assert reference.registry_host == host


def test_a_reference_made_by_hand_without_tag_pulls_latest() -> None:
    assert Reference("quay.io", "app").pull_spec == "quay.io/app:latest"
    assert str(Reference("quay.io", "app")) == "quay.io/app"


LABELS = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9-]{0,8}[A-Za-z0-9])?", fullmatch=True)
NAMES = st.lists(LABELS, min_size=2, max_size=4).map(".".join)
V6 = st.ip_addresses(v=6).map(lambda address: f"[{address}]")
PORTS = st.one_of(st.just(""), st.integers(1, 65535).map(lambda port: f":{port}"))
HOSTS = st.builds("{}{}".format, st.one_of(NAMES, V6, st.just("localhost"), st.ip_addresses(v=4).map(str)), PORTS)
COMPONENTS = st.from_regex(r"[a-z0-9]{1,5}((\.|_|__|-{1,3})[a-z0-9]{1,5}){0,2}", fullmatch=True)
PATHS = st.lists(COMPONENTS, min_size=1, max_size=4).map("/".join)
TAGS = st.from_regex(r":[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", fullmatch=True)
DIGESTS = st.sampled_from([("sha256", 64), ("sha384", 96), ("sha512", 128)]).flatmap(
    lambda kind: st.text("0123456789abcdef", min_size=kind[1], max_size=kind[1]).map(lambda d: f"@{kind[0]}:{d}")
)
# Without a host, a first component with a dot would be one.
BARE_PATHS = PATHS.filter(lambda path: "/" not in path or "." not in path.partition("/")[0])
REFERENCES = st.builds(
    "{}{}{}".format,
    st.one_of(BARE_PATHS, st.builds("{}/{}".format, HOSTS, PATHS)),
    st.one_of(st.just(""), TAGS),
    st.one_of(st.just(""), DIGESTS),
)


@given(REFERENCES)
def test_what_the_grammar_makes_is_parsed_and_comes_back(text: str) -> None:
    reference = parse_reference(text)
    assert parse_reference(str(reference)) == reference
    assert parse_reference(reference.familiar) == reference
    pulled = parse_reference(reference.pull_spec)
    assert (pulled.name, pulled.digest) == (reference.name, reference.digest)


@given(
    st.text(alphabet=st.one_of(st.sampled_from("aA0/:@.-_[]% \n" + string.hexdigits), st.characters()), max_size=300)
)
@example("@")
@example("://")
@example("[")
@example("a@sha256:")
@example(":/")
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        shown = str(parse_reference(text))
    except InvalidReference as error:
        shown = str(error)
    else:
        assert str(parse_reference(shown)) == shown
    assert shown.isprintable()


@pytest.mark.parametrize(
    "text",
    [
        "a" * (MAX_TEXT + 1),
        "a" * 10_000_000,
        "a-" * 2000 + "!",
        "a" + "-" * 4000 + "!",
        "a_" * 2000 + "/",
        "a." * 2000 + "/x",
        "a/" * 2040 + "A",
        "x:" + "1" * 4000 + "/y",
        "[" + ":" * 4000 + "]/x",
        "@" * 4000,
    ],
)
def test_hostile_length_is_refused_quickly(text: str) -> None:
    start = time.process_time()
    with pytest.raises(InvalidReference) as caught:
        parse_reference(text)
    assert time.process_time() - start < 2
    assert len(str(caught.value)) < 1000
