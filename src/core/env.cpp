// SPDX-License-Identifier: Apache-2.0
#include "thinwire/core/env.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>
#include <system_error>

#include "core/duration.h"
#include "core/require.h"

namespace thinwire::env {

namespace {

constexpr std::int64_t kMostRanks = 1 << 30;

std::optional<std::string> read(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

// Removes the digits at the front of `text` and returns their value. Returns
// nullopt if there are no digits or they overflow.
std::optional<std::int64_t> take_integer(std::string_view& text) {
  std::int64_t value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

// Returns the value as an integer in [least, kMostRanks]. Returns nullopt if it
// is unset or no such integer.
std::optional<int> announced(const char* name, std::int64_t least) {
  const auto value = read(name);
  if (!value) return std::nullopt;
  std::string_view text = *value;
  const auto number = take_integer(text);
  if (!number || !text.empty() || *number < least || *number > kMostRanks)
    return std::nullopt;
  return static_cast<int>(*number);
}

[[noreturn]] void reject_value(const char* name, const std::string& accepts,
                               const std::string& value) {
  reject(fmt::format("{} must be {}, got '{}'", name, accepts, value));
}

// Returns the value of a Thinwire variable in [1, most], or 0 if it is unset.
int number_in(const char* name, std::int64_t most) {
  const auto value = read(name);
  if (!value) return 0;
  const auto count = announced(name, 1);
  if (!count || *count > most)
    reject_value(name, fmt::format("an integer in [1, {}]", most), *value);
  return *count;
}

}  // namespace

int num_threads() { return number_in("THINWIRE_NUM_THREADS", 1024); }

std::chrono::milliseconds timeout() {
  constexpr const char* kName = "THINWIRE_TIMEOUT";
  const auto value = read(kName);
  if (!value) return std::chrono::minutes(10);
  const auto duration = duration_from(*value);
  if (!duration) reject_value(kName, kDurations, *value);
  return *duration;
}

std::optional<std::string> comm_backend() { return read("THINWIRE_COMM"); }

Prefetch prefetch() {
  constexpr const char* kName = "THINWIRE_PREFETCH";
  const auto value = read(kName);
  if (!value || *value == "auto") return Prefetch::kAuto;
  if (*value == "on") return Prefetch::kOn;
  if (*value == "off") return Prefetch::kOff;
  reject_value(kName, "auto, on or off", *value);
}

std::optional<std::string> simd() { return read("THINWIRE_SIMD"); }

int ranks_per_host() {
  return number_in("THINWIRE_RANKS_PER_HOST", kMostRanks);
}

std::optional<Announced> launched_on_host(int ranks) {
  struct Launcher {
    const char* all;
    const char* on_host;
  };
  // Variables of Open MPI's mpirun, of MPICH and of torchrun. One launcher may
  // have started another, so only the launcher whose job has this many ranks
  // counts.
  for (const Launcher& launcher :
       {Launcher{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"},
        Launcher{"PMI_SIZE", "MPI_LOCALNRANKS"},
        Launcher{"WORLD_SIZE", "LOCAL_WORLD_SIZE"}}) {
    const auto on_host = announced(launcher.on_host, 1);
    if (on_host && announced(launcher.all, 1) == ranks)
      return Announced{launcher.on_host, *on_host};
  }
  return std::nullopt;
}

int launched_ranks() {
  // Set by Open MPI's mpirun, MPICH's and SLURM's PMI, and srun for a step.
  std::int64_t most = 1;
  for (const char* name :
       {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}) {
    const auto value = read(name);
    if (!value) continue;
    std::string_view text = *value;
    most = std::max(most, take_integer(text).value_or(1));
  }
  return static_cast<int>(std::min<std::int64_t>(most, kMostRanks));
}

bool launched_by_mpirun() {
  if (read("OMPI_COMM_WORLD_SIZE")) return true;
  return read("PMI_SIZE") && !read("SLURM_STEP_NUM_TASKS");  // srun sets both
}

std::optional<int> launched_rank() {
  for (const char* name :
       {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    const auto rank = announced(name, 0);
    if (rank && *rank < launched_ranks()) return rank;
  }
  return std::nullopt;
}

}  // namespace thinwire::env
