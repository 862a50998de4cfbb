/* Holds so many MiB of memory that no two pages are alike, and reads a piece of it again at each count. What it reads
   is what it had written, or there is a file /bad. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static uint64_t mixed(uint64_t x)
{
    x ^= x >> 33; x *= 0xff51afd7ed558ccdULL; x ^= x >> 33; x *= 0xc4ceb9fe1a85ec53ULL;
    return x ^ (x >> 33);
}

static void told(const char *path, unsigned long number)
{
    FILE *file = fopen("/new", "w");
    fprintf(file, "%lu\n", number);
    fclose(file);
    rename("/new", path);
}

int main(int count, char **words)
{
    size_t size = (size_t)(count > 1 ? atoi(words[1]) : 64) << 20, step = 4096 / 8;
    uint64_t *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    size_t pages = size / 4096;
    for (size_t page = 0; page < pages; page++)
        for (size_t at = 0; at < step; at += 8)
            memory[page * step + at] = mixed(page * step + at);
    for (unsigned long number = 1;; number++) {
        for (size_t each = 0; each < 64; each++) {
            size_t page = mixed(number * 64 + each) % pages, at = page * step + 8 * (number % 64);
            if (memory[at] != mixed(at))
                told("/bad", number);
        }
        told("/count", number);
        usleep(5000);
    }
}
