// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/cpu_target.h"

#include <cstdint>

#include "kernels/cpu/targets.h"
#include "thinwire/core/error.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/cpu_target.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h, which includes this file once per target.
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

/// Returns the targets that this machine and build support, best first,
/// whatever is forced now.
const std::vector<std::int64_t>& supported() {
  static const std::vector<std::int64_t> targets =
      hwy::SupportedAndGeneratedTargets();
  return targets;
}

}  // namespace

std::string cpu_target() { return HWY_DYNAMIC_DISPATCH(run_target_name)(); }

std::vector<std::string> cpu_targets() {
  std::vector<std::string> names;
  for (const std::int64_t target : supported()) {
    names.emplace_back(hwy::TargetName(target));
  }
  return names;
}

void force_cpu_target(std::string_view name) {
  std::string names;
  for (const std::int64_t target : supported()) {
    if (name == hwy::TargetName(target)) {
      hwy::SetSupportedTargetsForTest(target);
      return;
    }
    names += std::string(names.empty() ? "" : ", ") + hwy::TargetName(target);
  }
  if (!name.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "name: must be empty or one of " +
                                                 names + ", got '" +
                                                 std::string(name) + "'");
  }
  hwy::SetSupportedTargetsForTest(0);
}

}  // namespace thinwire::kernels
#endif  // HWY_ONCE
