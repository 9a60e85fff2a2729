// SPDX-License-Identifier: Apache-2.0
#include "apps/thinwire/doctor.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "thinwire/comm/registry.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/env.h"
#include "thinwire/core/thread_pool.h"
#include "thinwire/kernels/cpu_target.h"
#include "thinwire/kernels/processor.h"

namespace thinwire::apps {

namespace {

std::string joined(const std::vector<std::string>& parts,
                   std::string_view separator) {
  std::string all;
  for (const std::string& part : parts) {
    if (!all.empty()) all += separator;
    all += part;
  }
  return all;
}

/// The report, line by line, and what would make the machine better.
class Report {
 public:
  static constexpr int kNameWidth = 12;

  void say(std::string_view name, std::string_view text) {
    std::cout << std::left << std::setw(kNameWidth) << name << text << '\n'
              << std::flush;
  }
  void advise(std::string advice) { advice_.push_back(std::move(advice)); }
  void conclude() {
    std::cout << "ready: ";
    if (advice_.empty())
      std::cout << "all that this version can use is here\n";
    else
      std::cout << "works as it is; better with: " << joined(advice_, "; ")
                << '\n';
  }

 private:
  std::vector<std::string> advice_;
};

int num_cores() {
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

void say_threads(Report& report) {
  const int asked = env::num_threads();
  report.say("threads",
             asked > 0
                 ? fmt::format("{} per rank (THINWIRE_NUM_THREADS)", asked)
                 : "1 per rank (THINWIRE_NUM_THREADS is not set)");
}

void say_backends(Report& report) {
  for (const comm::Backend& backend : comm::backends()) {
    const std::string why_not = backend.why_unavailable();
    report.say(backend.name, why_not.empty()
                                 ? fmt::format("yes: {}", backend.version())
                                 : fmt::format("no: {}", why_not));
    if (backend.name == "mpi" && !why_not.empty())
      report.advise("MPI, for several machines (scripts/bootstrap)");
  }
  for (const char* name : {"nccl", "hccl", "cuda"})
    report.say(name, "no: not part of this version");
}

void say_torch(Report& report) {
  constexpr std::string_view kVersion = THINWIRE_BUILD_TORCH;
  if (!kVersion.empty()) {
    report.say("torch", fmt::format("yes: LibTorch {}", kVersion));
    return;
  }
  report.say("torch", "no: " THINWIRE_BUILD_WHY_NOT_TORCH);
  report.advise("LibTorch, for train_gpt (scripts/bootstrap)");
}

void say_huge_pages(Report& report) {
  constexpr const char* kSetting =
      "/sys/kernel/mm/transparent_hugepage/enabled";
  std::ifstream file(kSetting);
  std::string line;
  std::getline(file, line);
  const std::size_t begin = line.find('[');
  const std::size_t end = line.find(']');
  if (begin == std::string::npos || end == std::string::npos || end < begin) {
    report.say("huge pages", fmt::format("unknown: {} says nothing", kSetting));
    return;
  }
  const std::string mode = line.substr(begin + 1, end - begin - 1);
  report.say("huge pages",
             fmt::format("{}: {}", mode == "never" ? "no" : "yes", mode));
  if (mode == "never")
    report.advise(
        fmt::format("huge pages (echo madvise > {}, as root)", kSetting));
}

/// GB/s of a += b: two reads and one write per element. The best of a few
/// rounds, since whatever else runs here can only slow it down.
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

void say_bandwidth(Report& report) {
  std::string text =
      fmt::format("{:.1f} GB/s with 1 thread", memory_bandwidth(1));
  if (num_cores() > 1)
    text += fmt::format(", {:.1f} GB/s with {}", memory_bandwidth(num_cores()),
                        num_cores());
  report.say("bandwidth", text + " (a += b, 256 MiB in all)");
}

}  // namespace

void run_doctor() {
  Report report;
  report.say("version", THINWIRE_VERSION);
  report.say("compiler", THINWIRE_BUILD_COMPILER ", " THINWIRE_BUILD_TYPE);
  report.say("processor", fmt::format("{}, {} cores", kernels::processor_name(),
                                      num_cores()));
  report.say("kernels", fmt::format("{}, of {}", kernels::cpu_target(),
                                    joined(kernels::cpu_targets(), " ")));
  report.say("prefetch",
             fmt::format("{}: {}", kernels::prefetches() ? "on" : "off",
                         kernels::prefetch_reason()));
  say_threads(report);
  say_backends(report);
  say_torch(report);
  say_huge_pages(report);
  say_bandwidth(report);
  report.conclude();
}

}  // namespace thinwire::apps
