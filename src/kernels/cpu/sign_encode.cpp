// SPDX-License-Identifier: Apache-2.0
#include "kernels/checks.h"
#include "kernels/cpu/targets.h"
#include "thinwire/kernels/sign_compress.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/sign_encode.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// This stands after foreach_target.h, which includes the file once per target.
#include "hwy/highway.h"
#include "kernels/cpu/sign_encode-inl.h"
#include "kernels/cpu/sign_input-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels::HWY_NAMESPACE {

float run_sign_encode(const SignInput& input, const SignBlock& block) {
  return use_input(input, [&](const auto& x) { return encode(x, block); });
}

}  // namespace thinwire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire::kernels {

HWY_EXPORT(run_sign_encode);

float sign_encode(const SignInput& input, const SignBlock& block) {
  require_block(block);
  require_input(input, block.residual.size());
  return THINWIRE_DISPATCH(run_sign_encode)(input, block);
}

}  // namespace thinwire::kernels
#endif  // HWY_ONCE
