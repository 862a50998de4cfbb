/* NVIDIA's management library, as far as anybody here calls it. It answers from the file machine.nvml beside it, which
 * is read anew when another file has taken its place, so that a machine can change while it is looked at:
 *
 *     count 8                      GPUs that the driver counts
 *     0.name NVIDIA H100           what GPU 0 says; a name without a value is something that it does not support
 *     0.lost 1                     it has fallen off the bus
 *     hang nvmlDeviceGetName       that call never comes back
 *     fail nvmlInitWithFlags 9     that call ends with this error
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, NOT_FOUND = 6, VERSION_MISMATCH = 25, GPU_IS_LOST = 15 };

typedef struct {
    char legacy[16];
    unsigned int domain, bus, device, id, subsystem;
    char place[32];
} pci_t;

/* Return the file's text, read anew if it is another file than before. */
static const char *answers(void)
{
    static char path[4096], text[1 << 16];
    static ino_t known;
    struct stat now;
    Dl_info here;
    FILE *file;

    if (!*path && dladdr((void *)answers, &here)) {
        snprintf(path, sizeof path - 16, "%s", here.dli_fname);
        strcpy(strrchr(path, '/'), "/machine.nvml");
    }
    if (stat(path, &now))
        return "";
    if (now.st_ino != known && (file = fopen(path, "r"))) {
        text[fread(text, 1, sizeof text - 1, file)] = 0;
        fclose(file);
        known = now.st_ino;
    }
    return text;
}

/* Copy what the file says of `key` into `value`; 1 if it says something. */
static int look_up(const char *key, char *value, size_t size)
{
    size_t length = strlen(key);

    for (const char *line = answers(); *line; line += strcspn(line, "\n"), line += *line == '\n') {
        if (!strncmp(line, key, length) && (line[length] == ' ' || line[length] == '\n' || !line[length])) {
            const char *start = line + length + (line[length] == ' ');
            snprintf(value, size, "%.*s", (int)strcspn(start, "\n"), start);
            return 1;
        }
    }
    return 0;
}

/* Do what the file says of a call itself: hang, fail, or go on. */
static int enter(const char *call)
{
    char key[128], value[64];

    snprintf(key, sizeof key, "hang %s", call);
    while (look_up(key, value, sizeof value))
        pause();
    snprintf(key, sizeof key, "fail %s", call);
    return look_up(key, value, sizeof value) ? atoi(value) : SUCCESS;
}

/* A GPU's handle is its number and one, as a pointer. */
static int say(const char *call, void *gpu, const char *name, char *value, size_t size)
{
    char key[64];
    int result = enter(call);

    if (result)
        return result;
    snprintf(key, sizeof key, "%d.lost", (int)(intptr_t)gpu - 1);
    if (look_up(key, value, size))
        return GPU_IS_LOST;
    snprintf(key, sizeof key, "%d.%s", (int)(intptr_t)gpu - 1, name);
    return look_up(key, value, size) ? SUCCESS : NOT_SUPPORTED;
}

static int say_number(const char *call, void *gpu, const char *name, unsigned long long *number)
{
    char value[128];
    int result = say(call, gpu, name, value, sizeof value);

    if (!result)
        *number = strtoull(value, NULL, 0);
    return result;
}

#define NUMBER(call, name, type)                                        \
    int call(void *gpu, type *out)                                      \
    {                                                                   \
        unsigned long long number;                                      \
        int result = say_number(#call, gpu, name, &number);             \
        if (!result)                                                    \
            *out = (type)number;                                        \
        return result;                                                  \
    }
#define TEXT(call, name)                                                \
    int call(void *gpu, char *out, unsigned int size)                   \
    {                                                                   \
        return say(#call, gpu, name, out, size);                        \
    }

NUMBER(nvmlDeviceGetMinorNumber, "minor", unsigned int)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, "generation", unsigned int)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, "generation_max", unsigned int)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, "width", unsigned int)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, "width_max", unsigned int)
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, "slowed", unsigned long long)
TEXT(nvmlDeviceGetName, "name")
TEXT(nvmlDeviceGetUUID, "uuid")
TEXT(nvmlDeviceGetSerial, "serial")

int nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    return enter("nvmlInitWithFlags");
}

int nvmlSystemGetDriverVersion(char *out, unsigned int size)
{
    int result = enter("nvmlSystemGetDriverVersion");
    return result ? result : look_up("driver", out, size) ? SUCCESS : NOT_FOUND;
}

int nvmlDeviceGetCount_v2(unsigned int *count)
{
    char value[32];
    int result = enter("nvmlDeviceGetCount_v2");

    if (!result)
        *count = look_up("count", value, sizeof value) ? (unsigned int)atoi(value) : 0;
    return result;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **gpu)
{
    *gpu = (void *)(intptr_t)(index + 1);
    return enter("nvmlDeviceGetHandleByIndex_v2");
}

static int place_of(const char *call, void *gpu, const char *name, pci_t *out)
{
    memset(out, 0, sizeof *out);
    return say(call, gpu, name, out->place, sizeof out->place);
}

int nvmlDeviceGetPciInfo_v3(void *gpu, pci_t *out)
{
    return place_of("nvmlDeviceGetPciInfo_v3", gpu, "place", out);
}

int nvmlDeviceGetMemoryInfo(void *gpu, unsigned long long out[3])
{
    int result = say_number("nvmlDeviceGetMemoryInfo", gpu, "memory", &out[0]);

    if (!result)
        result = say_number("nvmlDeviceGetMemoryInfo", gpu, "used", &out[2]);
    out[1] = out[0] - out[2];
    return result;
}

int nvmlDeviceGetUtilizationRates(void *gpu, unsigned int out[2])
{
    unsigned long long busy;
    int result = say_number("nvmlDeviceGetUtilizationRates", gpu, "busy", &busy);

    if (!result)
        out[0] = (unsigned int)busy, out[1] = 0;
    return result;
}

int nvmlDeviceGetMemoryAffinity(void *gpu, unsigned int size, unsigned long *out, int scope)
{
    unsigned long long node;
    int result = say_number("nvmlDeviceGetMemoryAffinity", gpu, "numa", &node);

    (void)scope;
    if (!result && node < 64 * size) {
        memset(out, 0, size * sizeof *out);
        out[node / 64] = 1ul << node % 64;
    }
    return result;
}

int nvmlDeviceGetMigMode(void *gpu, unsigned int *now, unsigned int *then)
{
    unsigned long long mode;
    int result = say_number("nvmlDeviceGetMigMode", gpu, "mig", &mode);

    if (!result)
        *now = *then = (unsigned int)mode;
    return result;
}

int nvmlDeviceGetTotalEccErrors(void *gpu, int kind, int counter, unsigned long long *out)
{
    return kind == 1 && counter == 0 ? say_number("nvmlDeviceGetTotalEccErrors", gpu, "uncorrected", out) : NOT_SUPPORTED;
}

int nvmlDeviceGetRemappedRows(void *gpu, unsigned int *corrected, unsigned int *not_corrected, unsigned int *pending,
                              unsigned int *failed)
{
    unsigned long long wait, broken;
    int result = say_number("nvmlDeviceGetRemappedRows", gpu, "remap_pending", &wait);

    if (!result)
        result = say_number("nvmlDeviceGetRemappedRows", gpu, "remap_failed", &broken);
    if (!result) {
        *corrected = *not_corrected = 0;
        *pending = (unsigned int)wait;
        *failed = (unsigned int)broken;
    }
    return result;
}

int nvmlDeviceGetClockInfo(void *gpu, int which, unsigned int *out)
{
    unsigned long long clock;
    int result = say_number("nvmlDeviceGetClockInfo", gpu, which == 1 ? "clock" : "memory_clock", &clock);

    if (!result)
        *out = (unsigned int)clock;
    return result;
}

int nvmlDeviceGetMaxClockInfo(void *gpu, int which, unsigned int *out)
{
    unsigned long long clock;
    int result = which == 1 ? say_number("nvmlDeviceGetMaxClockInfo", gpu, "clock_max", &clock) : NOT_SUPPORTED;

    if (!result)
        *out = (unsigned int)clock;
    return result;
}

typedef struct {
    uint32_t field, scope;
    int64_t time, latency;
    uint32_t type, result;
    union { double real; uint32_t small; uint64_t large; } value;
} field_t;

int nvmlDeviceGetFieldValues(void *gpu, int count, field_t *fields)
{
    for (int place = 0; place < count; place++) {
        unsigned long long number = 0;
        const char *name = fields[place].field == 230 ? "recovery" : "no such field";
        fields[place].result = (uint32_t)say_number("nvmlDeviceGetFieldValues", gpu, name, &number);
        fields[place].value.large = number;
    }
    return SUCCESS;
}

typedef struct {
    uint32_t version;
    uint8_t cluster[16];
    uint32_t status, clique;
    uint8_t state;
    uint32_t mask;
    uint8_t summary; /* from version 3 on */
} fabric_t;

int nvmlDeviceGetGpuFabricInfoV(void *gpu, fabric_t *out)
{
    char value[128], cluster[33];
    unsigned int status, clique, state, mask, summary, newest;
    int result = say("nvmlDeviceGetGpuFabricInfoV", gpu, "fabric", value, sizeof value);

    if (result)
        return result;
    if (sscanf(value, "%u %u %u %u %32s %u %u", &newest, &state, &status, &clique, cluster, &mask, &summary) != 7)
        return NOT_SUPPORTED;
    if (out->version >> 24 > newest)
        return VERSION_MISMATCH;
    for (int place = 0; place < 16; place++) {
        unsigned int byte = 0;
        sscanf(cluster + 2 * place, "%2x", &byte);
        out->cluster[place] = (uint8_t)byte;
    }
    out->status = status;
    out->clique = clique;
    out->state = (uint8_t)state;
    out->mask = mask;
    if (out->version >> 24 >= 3)
        out->summary = (uint8_t)summary;
    return SUCCESS;
}

/* A link is the number of the kind of its end (9: it is down) and the end's place, or "-". */
static int link_of(const char *call, void *gpu, unsigned int number, int *kind, char *place, size_t size)
{
    char name[32], value[64], where[40] = "";
    int result;

    snprintf(name, sizeof name, "link%u", number);
    result = say(call, gpu, name, value, sizeof value);
    if (!result && sscanf(value, "%d %39s", kind, where) < 1)
        result = NOT_SUPPORTED;
    if (!result)
        snprintf(place, size, "%s", strcmp(where, "-") ? where : "");
    return result;
}

int nvmlDeviceGetNvLinkState(void *gpu, unsigned int number, unsigned int *out)
{
    char place[40];
    int kind, result = link_of("nvmlDeviceGetNvLinkState", gpu, number, &kind, place, sizeof place);

    if (!result)
        *out = kind != 9;
    return result;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(void *gpu, unsigned int number, int *out)
{
    char place[40];
    return link_of("nvmlDeviceGetNvLinkRemoteDeviceType", gpu, number, out, place, sizeof place);
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *gpu, unsigned int number, pci_t *out)
{
    int kind;

    memset(out, 0, sizeof *out);
    return link_of("nvmlDeviceGetNvLinkRemotePciInfo_v2", gpu, number, &kind, out->place, sizeof out->place);
}

int nvmlShutdown(void)
{
    return enter("nvmlShutdown");
}
