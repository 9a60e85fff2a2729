// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/cpu_target.h"

#include <fmt/format.h>

#include <cstdint>
#include <optional>

#include "kernels/cpu/targets.h"
#include "thinwire/core/env.h"
#include "thinwire/core/error.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/cpu_target.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// This stands after foreach_target.h, which includes the file once per target.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels::HWY_NAMESPACE {

const char* run_target_name() { return hwy::TargetName(HWY_TARGET); }

}  // namespace thinwire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire::kernels {

HWY_EXPORT(run_target_name);

namespace {

/// Returns the targets that this machine and build support, best first, even if
/// one is forced now.
const std::vector<std::int64_t>& supported() {
  static const std::vector<std::int64_t> targets =
      hwy::SupportedAndGeneratedTargets();
  return targets;
}

void force(std::string_view source, std::string_view name) {
  std::string names;
  for (const std::int64_t target : supported()) {
    if (name == hwy::TargetName(target))
      return hwy::SetSupportedTargetsForTest(target);
    names += std::string(names.empty() ? "" : ", ") + hwy::TargetName(target);
  }
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("{} must be one of {}, got '{}'", source, names, name));
}

// Forces the target that the environment names, if any.
bool obey_environment() {
  if (const std::optional<std::string> name = env::simd())
    force("THINWIRE_SIMD", *name);
  return true;
}

}  // namespace

void choose_cpu_target() {
  // Other threads wait for the first call, and a call that threw is repeated.
  static const bool obeys = obey_environment();
  static_cast<void>(obeys);
}

std::string cpu_target() { return THINWIRE_DISPATCH(run_target_name)(); }

std::vector<std::string> cpu_targets() {
  std::vector<std::string> names;
  for (const std::int64_t target : supported()) {
    names.emplace_back(hwy::TargetName(target));
  }
  return names;
}

void force_cpu_target(std::string_view name) {
  choose_cpu_target();
  if (!name.empty()) return force("name", name);
  hwy::SetSupportedTargetsForTest(0);
  obey_environment();
}

}  // namespace thinwire::kernels
#endif  // HWY_ONCE
