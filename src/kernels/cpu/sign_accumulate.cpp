// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/sign_compress.h"

#include "kernels/checks.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/sign_accumulate.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h, which includes this file once per target.
#include "hwy/highway.h"
#include "kernels/cpu/sign_error-inl.h"
#include "kernels/cpu/sign_input-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels::HWY_NAMESPACE {

double run_sign_accumulate(const SignInput& input, float* error,
                           const std::uint32_t* active, SignNorm norm,
                           std::size_t size) {
  return use_input(input, [&](const auto& x) {
    return add_to_error(x, error, active, norm, size);
  });
}

}  // namespace thinwire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire::kernels {

HWY_EXPORT(run_sign_accumulate);

double sign_accumulate(const SignInput& input, float* error,
                       const std::uint32_t* active, SignNorm norm,
                       std::size_t size) {
  require_input(input, size);
  return HWY_DYNAMIC_DISPATCH(run_sign_accumulate)(input, error, active, norm,
                                                   size);
}

}  // namespace thinwire::kernels
#endif  // HWY_ONCE
