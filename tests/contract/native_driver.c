/* The native transfers without Python, for sanitizers: threads that write, sync and read objects of one
 * file, each through a ring of its own, with a crew of all (every other one with three places for all
 * objects), or one by one, among descriptors that are none, files that end early, and stamps that are
 * wrong. Then objects of a file each, which rows open, sync, close or keep open, and rename.
 */

#include "../../kv_cache/tiers/native/transfers.c"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>

enum { THREADS = 4, OBJECTS = 24, PAGES = 8, ROUNDS = 60, BYTES = PAGES * PAGE };

static int file, directory;
static char tier[THREADS * OBJECTS * BYTES]; /* in memory, of every third object, but of rings */
static char way; /* alone, crew, ring */
static struct crew *crew;
static int32_t go_on = 0;
static uint64_t words[PAGES * PAGE_WORDS];
static const struct noise NOISE_OF_ALL = {words, PAGES};

static void require(int holds, const char *what) {
  if (holds) return;
  fprintf(stderr, "%s\n", what);
  exit(1);
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

static void transfer(struct ring *ring, int thread, struct piece *pieces, int64_t count) {
  int64_t slots = slots_of(thread), apart = slots == OBJECTS ? 0 : BYTES;
  if (ring)
    require(!kv_transfer_many(ring, pieces, count, 8, &go_on, &NOISE_OF_ALL), "the ring failed");
  else if (crew)
    kv_transfer_by_crew(crew, pieces, count, apart, slots, &go_on, &NOISE_OF_ALL);
  else
    kv_transfer(pieces, count, &go_on, &NOISE_OF_ALL);
}

/* Every third file stays open, every fourth cannot be written. */
static void objects_of_a_file_each(int thread, char *memory) {
  enum { STEPS_OF_ONE = 4 + 1 };
  const int steps[STEPS_OF_ONE] = {OPEN, WRITE | STAMPED, SYNC, CLOSE, RENAME};
  struct piece pieces[OBJECTS * STEPS_OF_ONE];
  char names[OBJECTS][2][32];
  for (int i = 0; i < OBJECTS; i++)
    for (int k = 0; k < STEPS_OF_ONE; k++) {
      struct piece *piece = &pieces[i * STEPS_OF_ONE + k];
      *piece = piece_of(thread, i, memory, steps[k]);
      piece->flags &= ~MEMORY;
      if (piece->flags & WRITE) {
        piece->offset = i % 4 ? 0 : -1;
        continue;
      }
      snprintf(names[i][0], sizeof names[i][0], "%d-%d.tmp", thread, i);
      snprintf(names[i][1], sizeof names[i][1], "%d-%d", thread, i);
      piece->fd = directory;
      piece->address = (uint64_t)(uintptr_t)names[i][0];
      piece->base[0] = (uint64_t)(uintptr_t)names[i][1];
      piece->offset = O_CREAT | O_TRUNC | O_WRONLY;
      piece->nbytes = 0600;
      if (piece->flags & CLOSE && i % 3 == 0) piece->flags |= KEEP;
    }
  transfer(NULL, thread, pieces, OBJECTS * STEPS_OF_ONE);
  for (int i = 0; i < OBJECTS; i++) {
    const int64_t *wanted = (const int64_t[2][STEPS_OF_ONE]){{0, EINVAL, LEFT_OUT, 0, LEFT_OUT}, {0}}[i % 4 != 0];
    for (int k = 0; k < STEPS_OF_ONE; k++)
      require(pieces[i * STEPS_OF_ONE + k].error == wanted[k], "another end of a step of a file");
    if (i % 3 == 0) require(!close((int)pieces[i * STEPS_OF_ONE + 3].moved), "what stays open is not");
    require(!unlinkat(directory, names[i][i % 4 != 0], 0), "no file of that name");
  }
}

static void *work(void *argument) {
  int thread = (int)(intptr_t)argument;
  unsigned seed = (unsigned)thread + 1;
  char *memory = aligned_alloc(PAGE, OBJECTS * BYTES);
  struct ring *ring = NULL;
  require(way != 'r' || !kv_ring_open(8, &ring), "no ring");
  for (int round = 0; round < ROUNDS; round++) {
    struct piece pieces[OBJECTS], stores[2 * OBJECTS] = {{0}};
    for (int i = 0; i < OBJECTS; i++) {
      memcpy(memory + i * BYTES, words, BYTES);
      stores[2 * i] = piece_of(thread, i, memory, WRITE | STAMPED);
      stores[2 * i + 1].object = i;
      stores[2 * i + 1].flags = SYNC;
      stores[2 * i + 1].fd = i == OBJECTS / 2 ? 1 << 20 : file;
    }
    transfer(ring, thread, stores, 2 * OBJECTS);
    for (int i = 0; i < 2 * OBJECTS; i++)
      require(stores[i].error == (i == OBJECTS + 1 ? EBADF : 0), "a write or a sync failed");
    int faults[OBJECTS];
    for (int i = 0; i < OBJECTS; i++) {
      pieces[i] = piece_of(thread, i, memory, STAMPED | NOISE);
      faults[i] = pieces[i].flags & MEMORY ? 3 + rand_r(&seed) % 2 : rand_r(&seed) % 5;
      if (faults[i] == 1) pieces[i].fd = 1 << 20;
      if (faults[i] == 2) pieces[i].offset = (int64_t)1 << 40;
      if (faults[i] == 3) pieces[i].base[rand_r(&seed) % 3]++;
    }
    memset(memory, 0, OBJECTS * BYTES);
    transfer(ring, thread, pieces, OBJECTS);
    const int64_t wanted[] = {0, EBADF, SHORT, WRONG, 0};
    for (int i = 0; i < OBJECTS; i++)
      require(pieces[i].error == wanted[faults[i]], "another error than the one that was made");
  }
  for (int round = 0; !ring && round < ROUNDS; round++) objects_of_a_file_each(thread, memory);
  if (ring) kv_ring_close(ring);
  free(memory);
  return NULL;
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
  pthread_t threads[THREADS];
  for (intptr_t i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, work, (void *)i);
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  if (crew) kv_crew_close(crew);
  return 0;
}
