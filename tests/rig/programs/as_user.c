/* PostgreSQL does not run as root. Where CRIU may not look at the limits of other users' processes (it has no
   CAP_SYS_RESOURCE), it runs as root all the same and is told that it is somebody else: preloaded, this says so. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

enum { USER = 70 };

uid_t getuid(void)
{
    return USER;
}

uid_t geteuid(void)
{
    return USER;
}

int stat(const char *path, struct stat *about)
{
    int (*real)(const char *, struct stat *) = dlsym(RTLD_NEXT, "stat");
    int found = real(path, about);
    if (found == 0 && about->st_uid == 0)
        about->st_uid = USER;
    return found;
}
