// memory_read MODE FILE SECONDS: reads all of FILE again and again, by way of MODE, on one thread.
// Prints milliseconds until it can be read, those of the first read, and then GB/s (best, median);
// last, MiB that huge pages map, and MiB that only this process has.
//
// map: the file, mapped. populate: with MAP_POPULATE. advise: with MADV_HUGEPAGE. Copies of the
// file: memfd, memfd-huge, anonymous, anonymous-huge.
#include <fcntl.h>
#include <immintrin.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t HUGE = size_t{2} << 20;

double ms_since(Clock::time_point began) {
  return std::chrono::duration<double, std::milli>(Clock::now() - began).count();
}

void must(bool holds, const char* what) {
  if (holds) return;
  std::perror(what);
  std::exit(1);
}

// On a boundary of huge pages, wherever there is room.
char* map(size_t size, int flags, int fd, int prot = PROT_READ) {
  void* room = mmap(nullptr, size + HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  must(room != MAP_FAILED, "mmap");
  const uintptr_t at = (reinterpret_cast<uintptr_t>(room) + HUGE - 1) & ~(HUGE - 1);
  void* made = mmap(reinterpret_cast<void*>(at), size, prot, flags | MAP_FIXED, fd, 0);
  must(made != MAP_FAILED, "mmap");
  return static_cast<char*>(made);
}

char* copy_of(int fd, size_t size, char* into) {
  for (size_t done = 0; done < size;) {
    const ssize_t got = pread(fd, into + done, size - done, done);
    must(got > 0, "pread");
    done += got;
  }
  return into;
}

char* open_as(const std::string& mode, int fd, size_t size) {
  if (mode == "map") return map(size, MAP_SHARED, fd);
  if (mode == "populate") return map(size, MAP_SHARED | MAP_POPULATE, fd);
  if (mode == "advise") {
    char* made = map(size, MAP_SHARED, fd);
    must(!madvise(made, size, MADV_HUGEPAGE), "madvise");
    return made;
  }
  const bool is_huge = mode.find("huge") != std::string::npos;
  int copy = -1, flags = MAP_PRIVATE | MAP_ANONYMOUS;
  if (mode.find("memfd") != std::string::npos) {
    copy = memfd_create("weights", 0);
    must(copy >= 0 && !ftruncate(copy, size), "memfd");
    flags = MAP_SHARED;
  }
  char* made = map(size, flags, copy, PROT_READ | PROT_WRITE);
  if (is_huge) must(!madvise(made, size, MADV_HUGEPAGE), "madvise");
  return copy_of(fd, size, made);
}

// Four streams, as four rows of weights side by side.
uint64_t read_all(const char* from, size_t size) {
  const size_t part = size / 4 & ~size_t{63};
  __m256i sums[4] = {};
  for (size_t at = 0; at < part; at += 64)
    for (int stream = 0; stream < 4; ++stream)
      for (int half = 0; half < 64; half += 32) {
        const auto* words = reinterpret_cast<const __m256i*>(from + stream * part + at + half);
        sums[stream] = _mm256_xor_si256(sums[stream], _mm256_loadu_si256(words));
      }
  for (int stream = 1; stream < 4; ++stream) sums[0] = _mm256_xor_si256(sums[0], sums[stream]);
  return _mm256_extract_epi64(sums[0], 0) ^ _mm256_extract_epi64(sums[0], 2);
}

// The sum of lines in this process's smaps_rollup, in MiB.
long rolled_up(const std::vector<std::string>& names) {
  std::ifstream file("/proc/self/smaps_rollup");
  long total = 0;
  for (std::string line; std::getline(file, line);)
    for (const std::string& name : names)
      if (line.rfind(name + ":", 0) == 0) total += std::atol(line.c_str() + name.size() + 1);
  return total / 1024;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const int fd = open(argv[2], O_RDONLY);
  struct stat about;
  must(fd >= 0 && !fstat(fd, &about), argv[2]);
  const size_t size = about.st_size;
  auto began = Clock::now();
  const char* data = open_as(argv[1], fd, size);
  const double ready_ms = ms_since(began);
  began = Clock::now();
  volatile uint64_t sum = read_all(data, size);
  const double first_ms = ms_since(began);
  std::vector<double> rates;
  const auto end = Clock::now() + std::chrono::duration<double>(std::atof(argv[3]));
  while (Clock::now() < end) {
    began = Clock::now();
    sum = sum ^ read_all(data, size);
    rates.push_back(size / ms_since(began) / 1e6);
  }
  if (rates.empty()) rates.push_back(0);
  std::sort(rates.begin(), rates.end());
  std::printf("%.2f %.2f %.2f %.2f %ld %ld\n", ready_ms, first_ms, rates.back(),
              rates[rates.size() / 2],
              rolled_up({"AnonHugePages", "ShmemPmdMapped", "FilePmdMapped"}),
              rolled_up({"Private_Clean", "Private_Dirty"}));
  return 0;
}
