// pool_step KIND THREADS SECONDS GAP_MS: runs steps of 180 small pieces for so long, and prints how
// many there were and what one took, in microseconds: mean, median, 95th percentile.
//
// KIND says who shares out a piece: `pool` is engines/native/pool.h; `spin` and `barrier` deal the
// items out beforehand and meet at a barrier that spins, or at std::barrier.
#include "pool.h"

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

constexpr int PIECES = 180;  // what a step of 30 layers shares out
constexpr int ITEMS = 16;
constexpr int TURNS = 400;  // about two microseconds an item

void compute(uint64_t& state) {
  for (int turn = 0; turn < TURNS; ++turn) state = state * 6364136223846793005u + 1442695040888963407u;
}

struct SpinBarrier {
  explicit SpinBarrier(int threads) : threads(threads) {}

  void arrive_and_wait() {
    const uint32_t seen = round.load();
    if (arrived.fetch_add(1) + 1 == threads) {
      arrived.store(0);
      round.fetch_add(1);
    } else {
      while (round.load(std::memory_order_acquire) == seen) {
      }
    }
  }

  const int threads;
  std::atomic<int> arrived{0};
  std::atomic<uint32_t> round{0};
};

// Items dealt out evenly beforehand; all threads meet before and after each piece.
template <class Barrier>
class Dealer {
 public:
  explicit Dealer(int threads) : num_(threads), barrier_(threads) {
    for (int thread = 1; thread < threads; ++thread)
      threads_.emplace_back([this, thread] {
        for (;;) {
          barrier_.arrive_and_wait();
          if (is_closing_) return;
          share(thread);
          barrier_.arrive_and_wait();
        }
      });
  }

  ~Dealer() {
    is_closing_ = true;
    barrier_.arrive_and_wait();
    for (std::thread& thread : threads_) thread.join();
  }

  void run(std::vector<uint64_t>& states) {
    states_ = &states;
    barrier_.arrive_and_wait();
    share(0);
    barrier_.arrive_and_wait();
  }

 private:
  void share(int thread) {
    for (int item = ITEMS * thread / num_; item < ITEMS * (thread + 1) / num_; ++item)
      compute((*states_)[item * 8]);
  }

  const int num_;
  Barrier barrier_;
  std::vector<uint64_t>* states_ = nullptr;
  bool is_closing_ = false;
  std::vector<std::thread> threads_;
};

class Pooled {
 public:
  explicit Pooled(int threads) : pool_(threads) {}

  void run(std::vector<uint64_t>& states) {
    pool_.run(ITEMS, [&](int item, int) { compute(states[item * 8]); });
  }

 private:
  bulkhead::Pool pool_;
};

template <class Shared>
void measure(int threads, double seconds, double gap_ms) {
  Shared shared(threads);
  std::vector<uint64_t> states(ITEMS * 8, 1);
  std::vector<double> steps_us;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  while (Clock::now() < end) {
    const auto began = Clock::now();
    for (int piece = 0; piece < PIECES; ++piece) shared.run(states);
    steps_us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - began).count());
    if (gap_ms > 0) std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(gap_ms));
  }
  const size_t num = steps_us.size();
  std::sort(steps_us.begin(), steps_us.end());
  const double mean = std::accumulate(steps_us.begin(), steps_us.end(), 0.0) / num;
  std::printf("%zu %.1f %.1f %.1f\n", num, mean, steps_us[num / 2], steps_us[num * 95 / 100]);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const int threads = std::atoi(argv[2]);
  const double seconds = std::atof(argv[3]), gap_ms = std::atof(argv[4]);
  if (!std::strcmp(argv[1], "pool"))
    measure<Pooled>(threads, seconds, gap_ms);
  else if (!std::strcmp(argv[1], "spin"))
    measure<Dealer<SpinBarrier>>(threads, seconds, gap_ms);
  else if (!std::strcmp(argv[1], "barrier"))
    measure<Dealer<std::barrier<>>>(threads, seconds, gap_ms);
  else
    return 2;
  return 0;
}
