/* The native transfers without Python, for sanitizers: threads that write, sync and read objects of one
 * file, each through a ring of its own, with a crew of all (every other one with three places for all
 * objects), or one by one, among descriptors that are none, files that end early, and stamps that are
 * wrong. Then objects of a file each, which rows open, write, sync (in each mode) or read, close or keep
 * open, and rename; and the same as a rehearsal. All along somebody else looks at the rows of all tables,
 * as a run does that is cut off: what has ended has its outcome. In some calls he sets the abort flag.
 * Every fifth time the kernel refuses to take and give requests of a ring, for a reason that passes; and
 * rings fail in the middle of reads, after which memory is the caller's again.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

static __thread int entered, fails_at; /* times; 0: never */

static int refused(long number) {
  static const int passing[] = {EINTR, EAGAIN, EBUSY};
  if (number != SYS_io_uring_enter) return 0;
  int times = ++entered;
  if (times % 5 == 0) errno = passing[times / 5 % 3];
  if (times == fails_at) errno = EIO;
  return times % 5 == 0 || times == fails_at;
}

#define syscall(number, ...) (refused(number) ? -1 : syscall(number, __VA_ARGS__))

#include "../../kv_cache/tiers/native/transfers.c"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>

enum { THREADS = 4, OBJECTS = 24, PAGES = 8, ROUNDS = 24, BYTES = PAGES * PAGE, MOST_STEPS = 5 };
enum { MOST_ROWS = OBJECTS * MOST_STEPS, NO_FD = 1 << 20 };

static int file, directory;
static char tier[THREADS * OBJECTS * BYTES]; /* in memory, of every third object, but of rings */
static char way; /* alone, crew, ring */
static struct crew *crew;
static uint64_t words[PAGES * PAGE_WORDS];
static const struct noise NOISE_OF_ALL = {words, PAGES};

/* A table that a thread has worked off now, and what shall become of its rows. */
struct table {
  pthread_mutex_t lock;
  struct piece *pieces;
  const int64_t *wanted;
  int64_t count;
  int aborts; /* when the first of its rows has ended */
  int32_t abort;
};

static struct table tables[THREADS];
static int over;

static void require(int holds, const char *what) {
  if (holds) return;
  fprintf(stderr, "%s\n", what);
  exit(1);
}

static void look_at(struct table *table) {
  pthread_mutex_lock(&table->lock);
  for (int64_t i = 0; i < table->count; i++) {
    struct piece *piece = &table->pieces[i];
    if (!__atomic_load_n(&piece->ended_ns, __ATOMIC_ACQUIRE)) continue;
    require(piece->error == table->wanted[i], "what had ended had another outcome later");
    if (table->aborts) __atomic_store_n(&table->abort, 1, __ATOMIC_RELAXED);
  }
  pthread_mutex_unlock(&table->lock);
}

static void *watch(void *argument) {
  while (!__atomic_load_n(&over, __ATOMIC_RELAXED)) {
    for (int i = 0; i < THREADS; i++) look_at(&tables[i]);
    sched_yield();
  }
  return argument;
}

static void show(struct table *table, struct piece *pieces, const int64_t *wanted, int64_t count, int aborts) {
  pthread_mutex_lock(&table->lock);
  table->pieces = pieces;
  table->wanted = wanted;
  table->count = count;
  table->aborts = aborts;
  table->abort = 0;
  pthread_mutex_unlock(&table->lock);
}

static int64_t slots_of(int thread) { return crew && thread % 2 ? 3 : OBJECTS; }

static struct piece piece_of(int thread, int object, char *memory, int flags) {
  struct piece piece = {0};
  int64_t number = thread * OBJECTS + object;
  piece.object = object;
  piece.flags = flags;
  if (object % 2 && slots_of(thread) == OBJECTS) piece.flags |= SECTORS; /* which spoil the noise of pages */
  piece.fd = file;
  piece.offset = number * BYTES;
  if (way != 'r' && object % 3 == 0) {
    piece.flags |= MEMORY;
    piece.offset += (int64_t)(intptr_t)tier;
  }
  piece.nbytes = BYTES;
  piece.address = (uint64_t)(uintptr_t)memory;
  if (slots_of(thread) == OBJECTS) piece.address += (uint64_t)object * BYTES;
  for (int k = 0; k < 3; k++) piece.base[k] = (uint64_t)number * 7919 + (uint64_t)k;
  return piece;
}

/* Work off a table, of which each row shall end as is wanted, or be aborted. */
static void transfer(struct ring *ring, int thread, struct piece *pieces, const int64_t *wanted, int64_t count,
                     int aborts) {
  int64_t slots = slots_of(thread), apart = slots == OBJECTS ? 0 : BYTES;
  struct table *table = &tables[thread];
  show(table, pieces, wanted, count, aborts);
  if (ring)
    require(!kv_transfer_many(ring, pieces, count, 8, &table->abort, &NOISE_OF_ALL), "the ring failed");
  else if (crew)
    kv_transfer_by_crew(crew, pieces, count, apart, slots, &table->abort, &NOISE_OF_ALL);
  else
    kv_transfer(pieces, count, &table->abort, &NOISE_OF_ALL);
  show(table, NULL, NULL, 0, 0);
  for (int64_t i = 0; i < count; i++)
    require(pieces[i].error == wanted[i] || (aborts && pieces[i].error == ABORTED), "another end of a row");
}

/* The rows of files of objects each: of `steps`, and with the outcomes `failed` where one in four fails. */
struct files {
  struct piece pieces[MOST_ROWS];
  int64_t wanted[MOST_ROWS];
  char names[OBJECTS][2][32];
  int count;
};

static void lay_out(struct files *files, int thread, char *memory, const int *steps, const int64_t *failed, int beside) {
  files->count = 0;
  for (int i = 0; i < OBJECTS; i++) {
    snprintf(files->names[i][0], sizeof files->names[i][0], "%d-%d.tmp", thread, i);
    snprintf(files->names[i][1], sizeof files->names[i][1], "%d-%d", thread, i);
    for (int k = 0; k < MOST_STEPS && steps[k] >= 0; k++, files->count++) {
      struct piece *piece = &files->pieces[files->count];
      files->wanted[files->count] = i % 4 || beside ? 0 : failed[k];
      *piece = piece_of(thread, i, memory, steps[k] | beside);
      piece->flags &= ~MEMORY;
      piece->fd = directory;
      if (!(piece->flags & STEPS)) {
        piece->fd = -1;
        piece->offset = i % 4 ? 0 : -1;
        continue;
      }
      piece->address = (uint64_t)(uintptr_t)files->names[i][!(steps[1] & WRITE)];
      piece->base[0] = (uint64_t)(uintptr_t)files->names[i][1];
      piece->offset = steps[1] & WRITE ? O_CREAT | O_TRUNC | O_WRONLY : O_RDONLY;
      piece->nbytes = 0600;
    }
  }
}

static void close_kept(const struct files *files) {
  for (int i = 0; i < files->count; i++)
    if (files->pieces[i].flags & KEEP && files->pieces[i].moved)
      require(!close((int)files->pieces[i].moved), "what stays open is not");
}

static void remove_all(const struct files *files) {
  for (int i = 0; i < OBJECTS; i++)
    for (int k = 0; k < 2; k++) unlinkat(directory, files->names[i][k], 0);
}

/* Files that are written with a sync each, with none, or stay open to be synced later, and are read then.
 * Every fourth cannot be written, so that there is none to read. */
static void objects_of_a_file_each(int thread, char *memory, int mode, int aborts) {
  enum { W = WRITE | STAMPED, END = -1 };
  static const int writes[3][MOST_STEPS] = {
      {OPEN, W, SYNC, CLOSE, RENAME}, {OPEN, W, CLOSE, RENAME, END}, {OPEN, W, CLOSE | KEEP, RENAME, END}};
  static const int64_t unwritten[3][MOST_STEPS] = {
      {0, EINVAL, LEFT_OUT, 0, LEFT_OUT}, {0, EINVAL, 0, LEFT_OUT}, {0, EINVAL, 0, LEFT_OUT}};
  static const int reads[MOST_STEPS] = {OPEN, STAMPED | NOISE, CLOSE, END, 0};
  static const int64_t unread[MOST_STEPS] = {ENOENT, LEFT_OUT, LEFT_OUT};
  struct files files;
  for (int i = 0; i < OBJECTS; i++) memcpy(memory + i * BYTES, words, BYTES);
  lay_out(&files, thread, memory, writes[mode], unwritten[mode], 0);
  transfer(NULL, thread, files.pieces, files.wanted, files.count, aborts);
  close_kept(&files);
  if (!aborts) {
    memset(memory, 0, OBJECTS * BYTES);
    lay_out(&files, thread, memory, reads, unread, 0);
    transfer(NULL, thread, files.pieces, files.wanted, files.count, 0);
  }
  remove_all(&files);
  lay_out(&files, thread, memory, writes[mode], unwritten[mode], NOWHERE);
  transfer(NULL, thread, files.pieces, files.wanted, files.count, aborts);
  lay_out(&files, thread, memory, reads, unread, NOWHERE);
  transfer(NULL, thread, files.pieces, files.wanted, files.count, aborts);
}

/* Objects of the one file, and of memory, that are written, synced and read. */
static void objects_of_one_file(struct ring *ring, int thread, char *memory, unsigned *seed, int aborts) {
  struct piece pieces[OBJECTS], stores[2 * OBJECTS] = {{0}};
  int64_t wanted[2 * OBJECTS] = {0};
  for (int i = 0; i < OBJECTS; i++) {
    memcpy(memory + i * BYTES, words, BYTES);
    stores[2 * i] = piece_of(thread, i, memory, WRITE | STAMPED);
    stores[2 * i + 1].object = i;
    stores[2 * i + 1].flags = SYNC;
    stores[2 * i + 1].fd = i == OBJECTS / 2 ? NO_FD : file;
    wanted[2 * i + 1] = i == OBJECTS / 2 ? EBADF : 0;
  }
  transfer(ring, thread, stores, wanted, 2 * OBJECTS, aborts);
  if (aborts) return;
  static const int64_t ends[] = {0, EBADF, SHORT, WRONG, 0};
  for (int i = 0; i < OBJECTS; i++) {
    pieces[i] = piece_of(thread, i, memory, STAMPED | NOISE);
    int fault = pieces[i].flags & MEMORY ? 3 + rand_r(seed) % 2 : rand_r(seed) % 5;
    if (fault == 1) pieces[i].fd = NO_FD;
    if (fault == 2) pieces[i].offset = (int64_t)1 << 40;
    if (fault == 3) pieces[i].base[rand_r(seed) % 3]++;
    wanted[i] = ends[fault];
  }
  memset(memory, 0, OBJECTS * BYTES);
  transfer(ring, thread, pieces, wanted, OBJECTS, 0);
  for (int i = 0; i < OBJECTS; i++) {
    pieces[i] = piece_of(thread, i, memory, STAMPED | NOISE | NOWHERE);
    pieces[i].fd = -1;
    wanted[i] = 0;
  }
  transfer(ring, thread, pieces, wanted, OBJECTS, 0);
}

static void *work(void *argument) {
  int thread = (int)(intptr_t)argument;
  unsigned seed = (unsigned)thread + 1;
  char *memory = aligned_alloc(PAGE, OBJECTS * BYTES);
  struct ring *ring = NULL;
  require(way != 'r' || !kv_ring_open(8, &ring), "no ring");
  const struct iovec half = {.iov_base = memory, .iov_len = OBJECTS / 2 * BYTES + PAGE};
  if (ring && thread % 2) kv_ring_hold(ring, &half, 1); /* as far as this machine lets memory be locked */
  for (int round = 0; round < ROUNDS; round++) {
    objects_of_one_file(ring, thread, memory, &seed, round % 4 == 3);
    if (!ring) objects_of_a_file_each(thread, memory, round % 3, round % 4 == 3);
  }
  if (ring) kv_ring_close(ring);
  free(memory);
  return NULL;
}

/* Rings that fail after so many calls, with reads in flight, if the disk is slower than memory. */
static void rings_that_fail(const char *path) {
  enum { READS = 32, EACH = 1 << 18, ALL = READS * EACH };
  int direct = open(path, O_RDWR | O_CREAT | O_DIRECT, 0600);
  if (direct < 0) direct = open(path, O_RDWR | O_CREAT, 0600);
  char *memory = aligned_alloc(PAGE, ALL), *before = malloc(ALL);
  memset(memory, 0x5A, ALL);
  require(pwrite(direct, memory, ALL, 0) == ALL && !fsync(direct), "no file to read");
  for (int times = 1; times <= 12; times++) {
    struct piece pieces[READS] = {{0}};
    struct ring *ring;
    int32_t abort = 0;
    for (int i = 0; i < READS; i++)
      pieces[i] = (struct piece){.object = i, .fd = direct, .offset = i * EACH, .nbytes = EACH,
                                 .address = (uint64_t)(uintptr_t)memory + (uint64_t)i * EACH};
    memset(memory, 0, ALL);
    require(!kv_ring_open(READS, &ring), "no ring");
    if (times % 2) kv_ring_hold(ring, &(struct iovec){.iov_base = memory, .iov_len = ALL}, 1);
    entered = 0, fails_at = times;
    int error = kv_transfer_many(ring, pieces, READS, READS, &abort, &NOISE_OF_ALL);
    require(error == EIO || entered < times, "a ring that failed did not say so");
    memcpy(before, memory, ALL);
    usleep(50000);
    require(!memcmp(before, memory, ALL), "the kernel went on in memory after the call had failed");
    kv_ring_close(ring);
  }
  fails_at = 0;
  free(before);
  free(memory);
  close(direct);
}

static int descriptors(void) {
  int count = 0;
  DIR *all = opendir("/proc/self/fd");
  while (readdir(all)) count++;
  closedir(all);
  return count;
}

int main(int count, char **arguments) {
  require(count == 4, "usage: driver FILE DIRECTORY alone|crew|ring");
  directory = open(arguments[2], O_RDONLY | O_DIRECTORY);
  require(directory >= 0, "no directory");
  file = open(arguments[1], O_RDWR | O_CREAT, 0600);
  way = *arguments[3];
  require(file >= 0, "no file");
  require(way != 'c' || !kv_crew_open(3, &crew), "no crew");
  for (int i = 0; i < PAGES * PAGE_WORDS; i++) words[i] = (uint64_t)i * STEP[1];
  int before = descriptors();
  if (way == 'r') rings_that_fail(arguments[1]);
  pthread_t threads[THREADS], watcher;
  for (int i = 0; i < THREADS; i++) pthread_mutex_init(&tables[i].lock, NULL);
  pthread_create(&watcher, NULL, watch, NULL);
  for (intptr_t i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, work, (void *)i);
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  __atomic_store_n(&over, 1, __ATOMIC_RELAXED);
  pthread_join(watcher, NULL);
  require(descriptors() == before, "a descriptor was not closed");
  if (crew) kv_crew_close(crew);
  return 0;
}
