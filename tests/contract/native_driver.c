/* The native transfers without Python, for sanitizers: threads that write and read objects of one
 * file, each through a ring of its own, with a crew of all (every other one with three places for all
 * objects), or one by one, among descriptors that are none, files that end early, and stamps that are
 * wrong.
 */

#include "../../kv_cache/tiers/native/transfers.c"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>

enum { THREADS = 4, OBJECTS = 24, PAGES = 8, ROUNDS = 60, BYTES = PAGES * PAGE };

static int file;
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

static void *work(void *argument) {
  int thread = (int)(intptr_t)argument;
  unsigned seed = (unsigned)thread + 1;
  char *memory = aligned_alloc(PAGE, OBJECTS * BYTES);
  struct ring *ring = NULL;
  require(way != 'r' || !kv_ring_open(8, &ring), "no ring");
  for (int round = 0; round < ROUNDS; round++) {
    struct piece pieces[OBJECTS];
    for (int i = 0; i < OBJECTS; i++) {
      memcpy(memory + i * BYTES, words, BYTES);
      pieces[i] = piece_of(thread, i, memory, WRITE | STAMPED);
    }
    transfer(ring, thread, pieces, OBJECTS);
    for (int i = 0; i < OBJECTS; i++) require(!pieces[i].error, "a write failed");
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
  if (ring) kv_ring_close(ring);
  free(memory);
  return NULL;
}

int main(int count, char **arguments) {
  require(count == 3, "usage: driver FILE alone|crew|ring");
  file = open(arguments[1], O_RDWR | O_CREAT, 0600);
  way = *arguments[2];
  require(file >= 0, "no file");
  require(way != 'c' || !kv_crew_open(3, &crew), "no crew");
  for (int i = 0; i < PAGES * PAGE_WORDS; i++) words[i] = (uint64_t)i * STEP[1];
  pthread_t threads[THREADS];
  for (intptr_t i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, work, (void *)i);
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  if (crew) kv_crew_close(crew);
  return 0;
}
