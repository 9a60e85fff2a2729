// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <bitset>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

#include "core/require.h"
#include "thinwire/comm/agreement.h"
#include "thinwire/comm/hosts.h"
#include "thinwire/core/env.h"
#include "thinwire/plan/measure.h"

namespace thinwire::plan {

namespace {

// One bit per core that this process may use.
using Mask = std::bitset<1024>;

Mask own_mask() {
  Mask mask;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    for (std::size_t core = 0;
         core < std::min<std::size_t>(mask.size(), CPU_SETSIZE); ++core)
      mask[core] = CPU_ISSET(core, &set);
    return mask;
  }
  // The system's mask is longer, because it has more than 1024 cores.
  const std::size_t cores = std::thread::hardware_concurrency();
  for (std::size_t core = 0;
       core < std::clamp<std::size_t>(cores, 1, mask.size()); ++core)
    mask.set(core);
  return mask;
}

int count(const Mask& mask) { return static_cast<int>(mask.count()); }

int threads_of(int threads) {
  require(threads <= 1024, "threads", "<= 1024", threads);
  return threads >= 0 ? threads : std::max(env::num_threads(), 1);
}

// A rank's message to all other ranks.
struct OnMachine {
  std::int64_t machine = 0;
  std::int64_t threads = 0;
  Mask mask;
};
static_assert(std::is_trivially_copyable_v<OnMachine>);

int to_spare(const Processors& machine) {
  return machine.cores - machine.ranks * (machine.threads + 1);
}

}  // namespace

Processors processors_for(int ranks, int threads) {
  return {.cores = count(own_mask()),
          .ranks = ranks,
          .threads = threads_of(threads)};
}

Processors measure_processors(comm::Communicator& comm, int threads) {
  OnMachine own;
  comm::require_everywhere(comm, [&] {
    own = {comm::machine_id(), threads_of(threads), own_mask()};
  });
  std::vector<OnMachine> all(static_cast<std::size_t>(comm.size()));
  comm.all_gather(
      ConstView(&own, sizeof own, DType::kUInt8),
      View(all.data(), all.size() * sizeof(OnMachine), DType::kUInt8));
  Processors least;
  for (std::size_t first = 0; first < all.size(); ++first) {
    Processors machine{.ranks = 0, .threads = 0};
    Mask mask;
    for (const OnMachine& rank : all) {
      if (rank.machine != all[first].machine) continue;
      ++machine.ranks;
      machine.threads =
          std::max(machine.threads, static_cast<int>(rank.threads));
      mask |= rank.mask;
    }
    machine.cores = count(mask);
    if (first == 0 || to_spare(machine) < to_spare(least)) least = machine;
  }
  return least;
}

std::string describe(const Processors& processors) {
  if (processors.threads == 0)
    return "an accelerator computes, so communication during backward does not "
           "slow it down\n";
  const auto counted = [](int number, const char* what) {
    return fmt::format("{} {}{}", number, what, number == 1 ? "" : "s");
  };
  return fmt::format(
      "{} of {} on {}: {}\n", counted(processors.ranks, "rank"),
      counted(processors.threads, "thread"), counted(processors.cores, "core"),
      processors.has_spare_core()
          ? "spare cores run the communication during backward"
          : "no spare cores, so communication during backward slows it down");
}

}  // namespace thinwire::plan
