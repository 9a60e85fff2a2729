// SPDX-License-Identifier: Apache-2.0
// Saved state of a shard's low-bit exchanges: residuals and replicas.
#include <algorithm>
#include <utility>

#include "optim/saved_state.h"
#include "thinwire/kernels/cast.h"
#include "zero/shard_group.h"

namespace thinwire::zero {

using optim::Sharing;

// A state without bits_up contains residuals of momenta, whose unit differs.
void ShardGroup::list_residuals(optim::StateParts& parts) {
  if (bits_up_ == 0) return;
  EncodedGradients* const low_bit = gradients_->low_bit();
  parts.add(
      [&](optim::State& state) {
        state.encoded = low_bit != nullptr ? low_bit->parts() : state.shard;
        if (low_bit == nullptr && restored_residuals_.empty()) return;
        state.common.put_integer("bits_up", bits_up_);
        state.add_elements(optim::kWorkerError, Sharing::kMean, *state.encoded,
                           low_bit != nullptr ? low_bit->residuals()
                                              : restored_residuals_.view());
        optim::add_hosts(state, comm_.hosts());
      },
      [&](StateDict& state) {
        if (!state.has_scalar("bits_up") ||
            !state.has_array(optim::kWorkerError))
          return Buffer();
        const ConstView own =
            low_bit != nullptr
                ? low_bit->residuals()
                : ConstView(nullptr, shard_layout_.size(), DType::kFloat32);
        return optim::take_floats(state, optim::kWorkerError, own.dtype(),
                                  own.size());
      },
      [this, low_bit](Buffer&& saved) {
        if (low_bit != nullptr)
          low_bit->set_residuals(std::move(saved));
        else
          restored_residuals_ = std::move(saved);
      });
}

// Keeps the loaded parameters if the saved replicas have another dtype.
void ShardGroup::list_replicas(optim::StateParts& parts) {
  if (replicas_ == nullptr) return;
  const StateDict* const saved = parts.saved();
  const bool fit =
      saved == nullptr || (saved->has_array("replicas") &&
                           saved->array("replicas").dtype() == params_.dtype());
  if (fit) list_own_params(parts, "replicas");
  parts.set(has_own_replicas_, bool{fit});
}

// Lists this rank's shard of the parameters.
void ShardGroup::list_own_params(optim::StateParts& parts, const char* name,
                                 bool are_parameters) {
  const DType dtype = is_wide_ ? DType::kFloat32 : params_.dtype();
  parts.add(
      [&](optim::State& state) {
        optim::StateArray& array =
            state.add_elements(name, Sharing::kSharded, state.shard,
                               ConstView(nullptr, shard_layout_.size(), dtype));
        array.is_parameters = are_parameters;
        array.read = [this](Range range, View to) {
          read_own_params(range, to);
        };
      },
      [&](StateDict& state) {
        return optim::take_floats(state, name, dtype, shard_layout_.size());
      },
      [this](const Buffer& values) {
        for (std::size_t b = 0; b < shards_.buckets().size(); ++b)
          kernels::convert(values.view().subview(position(b), own(b).size),
                           own_params(b));
      });
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

}  // namespace thinwire::zero
