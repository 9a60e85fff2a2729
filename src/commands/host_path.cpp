// SPDX-License-Identifier: Apache-2.0
#include "commands/host_path.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <thread>

#include "thinwire/core/buffer.h"
#include "thinwire/core/dtype.h"
#include "thinwire/core/thread_pool.h"

namespace thinwire::commands {

int num_cores() {
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

// Returns the best of a few rounds, because other programs can only slow it
// down.
double memory_bandwidth(int num_threads) {
  constexpr std::size_t kSize = std::size_t{32} << 20;
  constexpr int kRounds = 7;
  Buffer a = Buffer::of<float>(kSize);
  Buffer b = Buffer::of<float>(kSize);
  float* const pa = a.as<float>().data();
  float* const pb = b.as<float>().data();
  ThreadPool pool(num_threads);
  const auto add = [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) pa[i] += pb[i];
  };
  pool.for_ranges(kSize, 1024, [&](std::size_t begin, std::size_t end) {
    std::fill(pb + begin, pb + end, 1.0f);
  });
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    pool.for_ranges(kSize, 1024, add);
    const std::chrono::duration<double, std::nano> time =
        std::chrono::steady_clock::now() - start;
    best = std::max(best, 3.0 * sizeof(float) * kSize / time.count());
  }
  return best;
}

std::string host_path(const plan::Workload& work, double copies_gbps) {
  // Bytes of memory traffic per parameter for encoding, averaging and updating.
  // The same number is in bench/devices.
  constexpr double kPasses = 24.5;
  const auto size = static_cast<double>(size_of(work.dtype));
  const double bytes = kPasses + 2 * size;
  const double rate = memory_bandwidth(num_cores());
  const auto ms = [&](double each, double gbps) {
    return work.parameters * each / gbps * 1e-6;
  };
  std::string text = fmt::format(
      "a model on a device: on this machine the host path costs {:.3g} ms per "
      "step with 1-bit Adam, {:.1f} bytes per parameter at {:.1f} GB/s of host "
      "memory; ",
      ms(bytes, rate), bytes, rate);
  return text + (copies_gbps > 0
                     ? fmt::format("parameters return in {:.3g} ms at {:.1f} "
                                   "GB/s\n",
                                   ms(size, copies_gbps), copies_gbps)
                     : std::string("copies to a device were not measured\n"));
}

}  // namespace thinwire::commands
