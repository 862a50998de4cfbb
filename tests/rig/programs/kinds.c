/* Two processes that use what the kernel keeps for them: a file that is deleted and open, locks of both kinds, a timer
   as a descriptor and one as a signal, a FIFO, an eventfd, all waited for by epoll. /count grows when each of them has
   had something to say; anything that is not as it should be makes a file /bad with its name. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { TIMER, SIGNAL, EVENT, FIFO, KINDS };

static void bad(const char *what)
{
    FILE *file = fopen("/bad", "a");
    fprintf(file, "%s: %s\n", what, strerror(errno));
    fclose(file);
}

static void told(unsigned long number)
{
    FILE *file = fopen("/new", "w");
    fprintf(file, "%lu\n", number);
    fclose(file);
    rename("/new", "/count");
}

/* The other process: writes numbers into the FIFO, adds to the eventfd, and never gets a lock. */
static void other(int event)
{
    int fifo = open("/fifo", O_WRONLY), owned = open("/locked", O_RDWR), shared = open("/locked", O_RDWR);
    for (uint64_t number = 1;; number++) {
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        uint64_t one = 1;
        if (write(fifo, &number, sizeof number) != sizeof number)
            bad("write to the fifo");
        if (write(event, &one, sizeof one) != sizeof one)
            bad("write to the eventfd");
        if (fcntl(owned, F_SETLK, &lock) == 0)
            bad("the record lock was free");
        if (flock(shared, LOCK_EX | LOCK_NB) == 0)
            bad("the file lock was free");
        usleep(5000);
    }
}

/* The file has no name any more: each time a line is added, and the first one is read again. */
static void deleted(int file, unsigned long number)
{
    char line[16], first[16] = "";
    snprintf(line, sizeof line, "%14lu\n", number);
    if (write(file, line, 15) != 15 || pread(file, first, 15, 0) != 15 || atol(first) != 1)
        bad("the deleted file");
    if (lseek(file, 0, SEEK_END) != (off_t)(15 * number))
        bad("the length of the deleted file");
}

/* A larger one, of more than a MiB, that nobody writes to any more. */
static void large(int file, unsigned long number)
{
    unsigned char page[4096];
    off_t at = (number * 37 % 700) * sizeof page;
    if (number == 1)
        for (int each = 0; each < 700; each++) {
            memset(page, each % 251 + 1, sizeof page);
            if (write(file, page, sizeof page) != sizeof page)
                bad("write to the large deleted file");
        }
    if (pread(file, page, sizeof page, at) != sizeof page || page[100] != at / 4096 % 251 + 1)
        bad("the large deleted file");
}

static int watched(int poll, int file, int kind)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = kind};
    if (epoll_ctl(poll, EPOLL_CTL_ADD, file, &event))
        bad("epoll_ctl");
    return file;
}

int main(void)
{
    struct itimerspec often = {{0, 5000000}, {0, 5000000}};
    struct itimerval tick = {{0, 5000}, {0, 5000}};
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    uint64_t expected = 1, value;
    int files[KINDS], seen[KINDS] = {0}, poll = epoll_create1(0);
    sigset_t signals;

    mkfifo("/fifo", 0600);
    int file = open("/deleted", O_RDWR | O_CREAT, 0600);
    unlink("/deleted");
    int larger = open("/larger", O_RDWR | O_CREAT, 0600);
    unlink("/larger");
    int owned = open("/locked", O_RDWR | O_CREAT, 0600), shared = open("/locked", O_RDWR);
    if (fcntl(owned, F_SETLK, &lock) || flock(shared, LOCK_EX))
        bad("locks");
    /* A lock of a record excludes other processes, a lock of the file other openings of it: both are tried there. */
    files[EVENT] = watched(poll, eventfd(0, EFD_NONBLOCK), EVENT);
    if (fork() == 0)
        other(files[EVENT]);
    files[FIFO] = watched(poll, open("/fifo", O_RDONLY), FIFO);
    files[TIMER] = watched(poll, timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK), TIMER);
    timerfd_settime(files[TIMER], 0, &often, NULL);
    sigemptyset(&signals);
    sigaddset(&signals, SIGALRM);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    files[SIGNAL] = watched(poll, signalfd(-1, &signals, SFD_NONBLOCK), SIGNAL);
    setitimer(ITIMER_REAL, &tick, NULL);

    for (unsigned long number = 0;;) {
        struct epoll_event event;
        struct signalfd_siginfo about;
        if (epoll_wait(poll, &event, 1, -1) != 1)
            continue;
        int kind = event.data.u32, whole = kind == SIGNAL ? (int)sizeof about : (int)sizeof value;
        int got = read(files[kind], kind == SIGNAL ? (void *)&about : (void *)&value, whole);
        if (got != whole) {
            if (errno != EAGAIN)
                bad("read");
            continue;
        }
        if (kind == FIFO && value != expected++)
            bad("the fifo lost something");
        if (kind == SIGNAL && about.ssi_signo != SIGALRM)
            bad("another signal");
        seen[kind] = 1;
        if (seen[TIMER] && seen[SIGNAL] && seen[EVENT] && seen[FIFO]) {
            memset(seen, 0, sizeof seen);
            deleted(file, ++number);
            large(larger, number);
            told(number);
        }
    }
}
