/* A file an object, as a program in C would do it: what `io_path.py --layout file` is held against.
 *
 *     file_loop DIR store|load|remove BYTES FILES THREADS
 *
 * Threads store (create, one pwrite, close, rename), load (open, one pread, close) or remove their
 * part of the files, with direct I/O, each from one buffer. Prints "began_ns ended_ns cpu_ns", and
 * after it what each file took in ns, one a line.
 */

#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { DIRECTORIES = 256 };

static const char *place, *action;
static int64_t nbytes, files, threads, *took_ns;
static pthread_barrier_t gate;

static int64_t now_ns(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void require(int holds, const char *what) {
  if (holds) return;
  perror(what);
  exit(1);
}

static void one(int directory, int64_t number, void *memory) {
  char name[64], made[64];
  snprintf(name, sizeof name, "%02x/%016lx.kv", (unsigned)(number % DIRECTORIES), (long)number);
  snprintf(made, sizeof made, "%s.tmp", name);
  if (*action == 'r') {
    require(!unlinkat(directory, name, 0), "unlink");
    return;
  }
  int stores = *action == 's', flags = stores ? O_CREAT | O_EXCL | O_RDWR : O_RDONLY;
  int file = openat(directory, stores ? made : name, flags | O_DIRECT | O_CLOEXEC, 0600);
  require(file >= 0, "open");
  int64_t done = stores ? pwrite(file, memory, nbytes, 0) : pread(file, memory, nbytes, 0);
  require(done == nbytes, "pwrite or pread");
  require(!close(file), "close");
  if (stores) require(!renameat(directory, made, directory, name), "rename");
}

static void *work(void *argument) {
  int64_t thread = (int64_t)(intptr_t)argument, each = files / threads;
  int directory = open(place, O_DIRECTORY | O_PATH);
  size_t room = (nbytes + (2 << 20) - 1) >> 21 << 21;
  void *memory = aligned_alloc(2 << 20, room);
  madvise(memory, room, MADV_HUGEPAGE);
  memset(memory, 0x5A, room);
  pthread_barrier_wait(&gate);
  for (int64_t i = thread * each; i < (thread + 1) * each; i++) {
    int64_t began_ns = now_ns(CLOCK_MONOTONIC);
    one(directory, i, memory);
    took_ns[i] = now_ns(CLOCK_MONOTONIC) - began_ns;
  }
  pthread_barrier_wait(&gate);
  return NULL;
}

int main(int count, char **words) {
  require(count == 6, "file_loop DIR store|load|remove BYTES FILES THREADS");
  place = words[1], action = words[2];
  nbytes = atoll(words[3]), files = atoll(words[4]), threads = atoll(words[5]);
  took_ns = calloc((size_t)files, sizeof *took_ns);
  for (int i = 0; i < DIRECTORIES; i++) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%02x", place, i);
    mkdir(path, 0700);
  }
  pthread_barrier_init(&gate, NULL, (unsigned)threads + 1);
  for (int64_t i = 0; i < threads; i++) {
    pthread_t thread;
    require(!pthread_create(&thread, NULL, work, (void *)(intptr_t)i), "thread");
  }
  pthread_barrier_wait(&gate);
  int64_t began_ns = now_ns(CLOCK_MONOTONIC), cpu_ns = now_ns(CLOCK_PROCESS_CPUTIME_ID);
  pthread_barrier_wait(&gate);
  int64_t ended_ns = now_ns(CLOCK_MONOTONIC);
  cpu_ns = now_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu_ns;
  printf("%ld %ld %ld\n", (long)began_ns, (long)ended_ns, (long)cpu_ns);
  for (int64_t i = 0; i < files; i++) printf("%ld\n", (long)took_ns[i]);
  return 0;
}
