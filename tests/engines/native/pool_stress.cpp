// pool_stress THREADS ROUNDS: every item of every round runs once, on a thread of the pool's, and
// none before its round began or after it ended. Exits with 1 and a sentence if not.
#include "pool.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

namespace {

constexpr int MANY_ITEMS = 140'001;  // more than the pool shares out at once
constexpr int MOST_ITEMS = 24;  // else

// Plain ints: that no two threads touch one at once is the pool's promise, and the sanitizer's to
// check.
struct Item {
  int round = 0;
  int runs = 0;
};

// Mostly nothing, so that rounds follow each other closely; at times long enough for the others to
// join in, and to be taken off their cores.
void spend(int round, int item) {
  if (item >= MOST_ITEMS) return;
  if (round % 64 == 0) return std::this_thread::sleep_for(std::chrono::microseconds(item % 5 * 10));
  if (round % 8 == 0) std::this_thread::yield();
}

int fail(int round, int item, const Item& found) {
  std::printf("round %d, item %d: ran %d times, the last in round %d\n", round, item, found.runs,
              found.round);
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const int num_threads = std::atoi(argv[1]), num_rounds = std::atoi(argv[2]);
  bulkhead::Pool pool(num_threads);
  std::vector<Item> items(MANY_ITEMS);
  std::vector<long> by_thread(num_threads);
  long expected = 0;
  for (int round = 1; round <= num_rounds; ++round) {
    // often fewer than there are threads, and none
    const int num_items = round % 3000 == 0 ? MANY_ITEMS : round * 7 % MOST_ITEMS;
    expected += num_items;
    pool.run(num_items, [&](int item, int thread) {
      spend(round, item);
      items[item].round = round;
      ++items[item].runs;
      ++by_thread[thread];
    });
    for (int item = 0; item < num_items; ++item) {
      if (items[item].runs != 1 || items[item].round != round) return fail(round, item, items[item]);
      items[item].runs = 0;
    }
    if (round % 1000 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));  // all sleep
  }
  long done = 0, others = 0;
  for (int thread = 0; thread < num_threads; ++thread) {
    done += by_thread[thread];
    others += thread ? by_thread[thread] : 0;
  }
  if (done != expected) return fail(num_rounds, static_cast<int>(done - expected), items[0]);
  std::printf("%ld of %ld items on other threads\n", others, done);
  return 0;
}
