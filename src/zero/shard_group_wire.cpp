// SPDX-License-Identifier: Apache-2.0
// State of a shard's low-bit exchanges: residuals and replicas.
#include <algorithm>
#include <memory>
#include <utility>

#include "optim/saved_state.h"
#include "thinwire/kernels/cast.h"
#include "zero/shard_group.h"

namespace thinwire::zero {

using optim::Sharing;

void ShardGroup::add_wire(optim::State& state) const {
  const EncodedGradients* const low_bit = gradients_->low_bit();
  if (bits_up_ != 0)
    state.encoded = low_bit != nullptr ? low_bit->parts() : state.shard;
  if (low_bit != nullptr || !restored_residuals_.empty()) {
    state.common.put_integer("bits_up", bits_up_);
    state.add_elements(
        optim::kWorkerError, Sharing::kMean, *state.encoded,
        low_bit != nullptr ? low_bit->residuals() : restored_residuals_.view());
    optim::add_hosts(state, comm_.hosts());
  }
  if (replicas_ == nullptr) return;
  state.common.put_integer("bits_down", replicas_->bits());
  static_cast<void>(add_own_params(state, "replicas"));
}

// Adds this rank's shard of the parameters.
optim::StateArray& ShardGroup::add_own_params(optim::State& state,
                                              const char* name) const {
  const DType dtype = is_wide_ ? DType::kFloat32 : params_.dtype();
  optim::StateArray& array =
      state.add_elements(name, Sharing::kSharded, state.shard,
                         ConstView(nullptr, shard_layout_.size(), dtype));
  array.read = [this](Range range, View to) { read_own_params(range, to); };
  return array;
}

// Reads elements `range` of this rank's shard.
void ShardGroup::read_own_params(Range range, View to) const {
  for (std::size_t b = 0; b < shards_.buckets().size(); ++b) {
    const std::size_t begin = std::max(range.offset, position(b));
    const std::size_t end = std::min(range.end(), position(b) + own(b).size);
    if (begin >= end) continue;
    kernels::convert(own_params(b).subview(begin - position(b), end - begin),
                     to.subview(begin - range.offset, end - begin));
  }
}

// A state without bits_up has residuals of momenta, whose unit is another one.
// If the saved replicas have another dtype, the loaded parameters are kept.
optim::Adoption ShardGroup::adopt_wire(StateDict& state) {
  EncodedGradients* const low_bit = gradients_->low_bit();
  const ConstView own_residuals =
      low_bit != nullptr
          ? low_bit->residuals()
          : ConstView(nullptr, shard_layout_.size(), DType::kFloat32);
  const auto residuals = std::make_shared<Buffer>();
  if (bits_up_ != 0 && state.has_scalar("bits_up") &&
      state.has_array(optim::kWorkerError))
    *residuals =
        optim::take_floats(state, optim::kWorkerError, own_residuals.dtype(),
                           own_residuals.size());
  const auto replicas = std::make_shared<Buffer>();
  if (replicas_ != nullptr && state.has_array("replicas") &&
      state.array("replicas").dtype() == params_.dtype())
    *replicas = optim::take_floats(state, "replicas", params_.dtype(),
                                   shard_layout_.size());
  return [this, low_bit, residuals, replicas] {
    if (low_bit != nullptr)
      low_bit->set_residuals(std::move(*residuals));
    else
      restored_residuals_ = std::move(*residuals);
    has_own_replicas_ = !replicas->empty();
    if (!has_own_replicas_) return;
    for (std::size_t b = 0; b < shards_.buckets().size(); ++b)
      kernels::convert(
          std::as_const(*replicas).view().subview(position(b), own(b).size),
          own_params(b));
  };
}

// A group of one rank needs no replicas. Its parameters become what larger
// groups saved as masters.
optim::Adoption ShardGroup::adopt_as_parameters(StateDict& state) {
  if (comm_.size() > 1 || !state.has_scalar("bits_down") ||
      !state.has_array("masters"))
    return [] {};
  return adopt_as_params(state, "masters");
}

optim::Adoption ShardGroup::adopt_as_params(StateDict& state,
                                            const char* name) {
  const auto values = std::make_shared<Buffer>(optim::take_floats(
      state, name, is_wide_ ? DType::kFloat32 : params_.dtype(),
      shard_layout_.size()));
  return [this, values] {
    for (std::size_t b = 0; b < shards_.buckets().size(); ++b)
      kernels::convert(
          std::as_const(*values).view().subview(position(b), own(b).size),
          own_params(b));
  };
}

}  // namespace thinwire::zero
