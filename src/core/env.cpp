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

std::optional<std::string> read(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

// The digits at the front of `text`, which are removed; nullopt if none fit.
std::optional<std::int64_t> take_integer(std::string_view& text) {
  std::int64_t value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

[[noreturn]] void reject_value(const char* name, const char* accepts,
                               const std::string& value) {
  reject(fmt::format("{} must be {}, got '{}'", name, accepts, value));
}

}  // namespace

int num_threads() {
  constexpr const char* kName = "THINWIRE_NUM_THREADS";
  const auto value = read(kName);
  if (!value) return 0;
  std::string_view text = *value;
  const auto count = take_integer(text);
  if (!count || !text.empty() || *count < 1 || *count > 1024)
    reject_value(kName, "an integer in [1, 1024]", *value);
  return static_cast<int>(*count);
}

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
  return static_cast<int>(std::min<std::int64_t>(most, 1 << 30));
}

bool launched_by_mpirun() {
  if (read("OMPI_COMM_WORLD_SIZE")) return true;
  return read("PMI_SIZE") && !read("SLURM_STEP_NUM_TASKS");  // srun sets both
}

std::optional<int> launched_rank() {
  for (const char* name :
       {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    const auto value = read(name);
    if (!value) continue;
    std::string_view text = *value;
    const auto rank = take_integer(text);
    if (rank && text.empty() && *rank >= 0 && *rank < launched_ranks())
      return static_cast<int>(*rank);
  }
  return std::nullopt;
}

}  // namespace thinwire::env
