// What is marked with data-live is fetched again when the server says that something of it has changed.
"use strict";
(() => {
  const parts = () => [...document.querySelectorAll("[data-live]")];
  const badge = document.getElementById("live");
  if (!badge || !parts().length || !window.EventSource) return;
  const say = (text, mood) => { badge.hidden = false; badge.textContent = text; badge.className = "live " + mood; };
  let busy = false, again = false;

  async function refresh() {
    if (busy) { again = true; return; }
    busy = true;
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
      if (answer.redirected) { location.reload(); return; }
      if (!answer.ok) return;
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      const theirs = [...fresh.querySelectorAll("[data-live]")];
      parts().forEach((part, index) => {
        if (!theirs[index] || part.contains(document.activeElement) && document.activeElement.matches("input")) return;
        const picture = part.querySelector(".picture"), left = picture?.scrollLeft, top = picture?.scrollTop;
        const focused = part.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
        part.innerHTML = theirs[index].innerHTML;
        const after = part.querySelector(".picture");
        if (after && picture) { after.scrollLeft = left; after.scrollTop = top; }
        if (focused) part.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
      });
    } catch { say("no connection", "bad"); } finally {
      busy = false;
      if (again) { again = false; refresh(); }
    }
  }

  const stream = new EventSource("/ui/live");
  stream.onopen = () => say("live", "good");
  stream.onerror = () => say("connecting …", "idle");
  stream.addEventListener("changed", (event) => {
    const changed = event.data.split(" ");
    if (parts().some((part) => part.dataset.live.split(" ").some((name) => changed.includes(name)))) refresh();
  });
  setInterval(refresh, 30000);
})();
