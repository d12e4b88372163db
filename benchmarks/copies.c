/* Counts what a process copies in memory, in calls of 64 KiB and more, by pid: preloaded by copies.py.

   A page in the folder COPIES_FOLDER, named by the pid, holds the number of bytes. A forked child takes a page of its own.
   Copies that the kernel makes, between sockets and memory, are not among them. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const size_t least = 65536;
static void *(*real_memcpy)(void *, const void *, size_t);
static void *(*real_memmove)(void *, const void *, size_t);
static _Atomic unsigned long *counter;

static void open_page(void) {
    const char *folder = getenv("COPIES_FOLDER");
    char path[4096];
    counter = NULL;
    if (folder == NULL) return;
    snprintf(path, sizeof path, "%s/%d", folder, (int)getpid());
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, 4096) != 0) return;
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (page != MAP_FAILED) counter = page;
}

__attribute__((constructor)) static void begin(void) {
    real_memcpy = dlsym(RTLD_NEXT, "memcpy");
    real_memmove = dlsym(RTLD_NEXT, "memmove");
    open_page();
    pthread_atfork(NULL, NULL, open_page);
}

static void count(size_t size) {
    if (size >= least && counter != NULL) atomic_fetch_add_explicit(counter, size, memory_order_relaxed);
}

/* Before the constructor has run: the dynamic linker copies, too. */
static void *slowly(void *to, const void *from, size_t size) {
    volatile char *t = to;
    const volatile char *f = from;
    if (t < f) {
        for (size_t at = 0; at < size; at++) t[at] = f[at];
    } else {
        for (size_t at = size; at > 0; at--) t[at - 1] = f[at - 1];
    }
    return to;
}

void *memcpy(void *restrict to, const void *restrict from, size_t size) {
    count(size);
    return real_memcpy != NULL ? real_memcpy(to, from, size) : slowly(to, from, size);
}

void *memmove(void *to, const void *from, size_t size) {
    count(size);
    return real_memmove != NULL ? real_memmove(to, from, size) : slowly(to, from, size);
}

void *__memcpy_chk(void *to, const void *from, size_t size, size_t room) {
    if (size > room) abort();
    return memcpy(to, from, size);
}

void *__memmove_chk(void *to, const void *from, size_t size, size_t room) {
    if (size > room) abort();
    return memmove(to, from, size);
}
