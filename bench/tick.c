/* tick FILE [MIB]: touches so much memory, then says every millisecond in FILE that it lives.
 *
 * FILE holds one record, in the machine's byte order. Whoever makes FILE empty begins a new measurement: `gap` is the
 * longest time between two ticks since then, `until` when it ended (CLOCK_REALTIME: a restored process has a monotonic
 * clock of its own). Each tick writes to a page of the memory, another one each time, so that memory which is not there
 * yet is waited for. */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

struct record {
    uint64_t count, now, gap, until;
};

static uint64_t now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    return (uint64_t)at.tv_sec * 1000000000u + (uint64_t)at.tv_nsec;
}

static uint64_t state = 88172645463325252u;

static uint64_t number(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return 2;
    uint64_t words = (argc > 2 ? strtoull(argv[2], 0, 10) : 0) * (1 << 20) / sizeof(uint64_t);
    uint64_t *memory = 0;
    if (words) {
        memory = mmap(0, words * sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED)
            return 1;
        for (uint64_t n = 0; n < words; n++)
            memory[n] = number();
    }
    int file = open(argv[1], O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file < 0)
        return 1;
    struct record record = {0, now(), 0, 0}, there;
    for (;;) {
        struct timespec wait = {0, 1000000};
        nanosleep(&wait, 0);
        uint64_t at = now();
        if (pread(file, &there, sizeof there, 0) != sizeof there)
            record.gap = 0;
        if (memory)
            memory[number() % words]++;
        if (at - record.now > record.gap) {
            record.gap = at - record.now;
            record.until = now();
        }
        record.count++;
        record.now = at;
        if (pwrite(file, &record, sizeof record, 0) != sizeof record)
            return 1;
    }
}
