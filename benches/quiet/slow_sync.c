// Delays each sync of a file by 100 ms.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>

int fsync(int fd) {
  usleep(100000);
  return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(fd);
}

int fdatasync(int fd) {
  usleep(100000);
  return ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(fd);
}
