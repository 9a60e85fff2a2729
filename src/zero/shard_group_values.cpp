// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "optim/saved_state.h"
#include "thinwire/core/error.h"
#include "thinwire/core/memory.h"
#include "thinwire/kernels/cast.h"
#include "zero/shard_group.h"

// Access to complete values, and this rank's shard in saved states.
namespace thinwire::zero {

View ShardGroup::array(const Fragment& fragment, std::string_view what) {
  const std::size_t flat =
      layout_.parameters()[fragment.parameter].offset + fragment.range.offset;
  if (what == "grad") {
    std::size_t b = 0;
    while (shards_.buckets()[b].range.end() <= flat) ++b;
    return gradients_->piece(b).subview(flat - own(b).offset,
                                        fragment.range.size);
  }
  if (what != "param")
    return rule_->state(what).subview(fragment.position, fragment.range.size);
  return has_masters_
             ? masters_.view().subview(fragment.position, fragment.range.size)
             : params_.subview(flat, fragment.range.size);
}

// Checks the name on all ranks, including those that own no element of the
// parameter.
void ShardGroup::require_array(std::string_view what) const {
  if (what != "grad" && what != "param") static_cast<void>(rule_->state(what));
}

std::vector<float> ShardGroup::read(std::size_t parameter,
                                    std::string_view what) {
  require_array(what);
  const auto fragments = shards_.fragments_of(parameter);
  std::vector<std::size_t> counts(static_cast<std::size_t>(comm_.size()));
  std::vector<float> own;
  for (const Fragment& fragment : fragments) {
    counts[static_cast<std::size_t>(fragment.owner)] += fragment.range.size;
    if (fragment.owner != comm_.rank()) continue;
    own.resize(own.size() + fragment.range.size);
    kernels::convert(array(fragment, what),
                     std::span(own).last(fragment.range.size));
  }
  const std::size_t size = layout_.parameters()[parameter].size;
  std::vector<float> gathered(size);
  comm_.all_gather(own, gathered, counts);
  std::vector<std::size_t> next(counts.size());
  for (std::size_t r = 1; r < next.size(); ++r)
    next[r] = next[r - 1] + counts[r - 1];
  std::vector<float> whole(size);
  for (const Fragment& fragment : fragments) {
    auto& from = next[static_cast<std::size_t>(fragment.owner)];
    std::copy_n(&gathered[from], fragment.range.size,
                &whole[fragment.range.offset]);
    from += fragment.range.size;
  }
  return whole;
}

void ShardGroup::write(std::size_t parameter, std::string_view what,
                       std::span<const float> values) {
  require_array(what);
  const Parameter& p = layout_.parameters()[parameter];
  for (const Fragment& fragment : shards_.fragments_of(parameter))
    if (fragment.owner == comm_.rank())
      kernels::convert(
          values.subspan(fragment.range.offset, fragment.range.size),
          array(fragment, what));
  if (what == "param")
    kernels::convert(values, params_.subview(p.offset, p.size));
}

void ShardGroup::fill_masters(ConstView params) {
  if (!has_masters_) return;
  for (std::size_t b = 0; b < shards_.buckets().size(); ++b)
    kernels::convert(params.subview(own(b).offset, own(b).size),
                     masters_.view().subview(position(b), own(b).size));
}

// With low-bit replicas, sets the parameters of all ranks to the rounded
// masters.
void ShardGroup::set_masters(ConstView params) {
  fill_masters(params);
  if (replicas_ == nullptr || params.data() == params_.data()) return;
  for (const ShardBucket& bucket : shards_.buckets())
    kernels::convert(params.subview(bucket.range.offset, bucket.range.size),
                     params_.subview(bucket.range.offset, bucket.range.size));
}

// ---- this rank's shard, saved

std::vector<Range> ShardGroup::shard_ranges() const {
  std::vector<Range> ranges;
  for (std::size_t b = 0; b < shards_.buckets().size(); ++b)
    if (own(b).size != 0) ranges.push_back(own(b));
  return ranges;
}

optim::State ShardGroup::state() {
  optim::State state;
  state.shard = shard_ranges();
  rule_->add_to(state, optim::Sharing::kSharded, state.shard);
  optim::StateParts parts(state);
  list(parts);
  if (replicas_ != nullptr)
    state.common.put_integer("bits_down", replicas_->bits());
  state.common.put_text("optimizer", std::string(rule_->name()));
  return state;
}

optim::Adoption ShardGroup::adopt(StateDict& state) {
  optim::require_rule(state, rule_->name());
  optim::StateParts parts(state);
  list(parts);
  // The rule comes first, because a rule in another language may fail.
  return [of_rule = rule_->adopt(state), set = parts.adoption()] {
    of_rule();
    set();
  };
}

// Lists masters and replicas. Low-bit replicas may differ from masters of the
// same dtype. If a state contains no masters, its parameters had this dtype and
// served as masters. A group of one rank has no replicas, so its parameters
// take the masters that larger groups have saved.
void ShardGroup::list(optim::StateParts& parts) {
  const bool may_lack =
      replicas_ != nullptr && masters_.dtype() == params_.dtype();
  if (has_masters_ && may_lack && !parts.has("masters", true))
    parts.then([this] { fill_masters(params_); });
  else if (has_masters_)
    parts.elements({.name = "masters",
                    .ranges = shard_ranges(),
                    .sharing = optim::Sharing::kSharded,
                    .dtype = masters_.dtype(),
                    .is_parameters = !may_lack},
                   masters_);
  else if (is_wide_ || (parts.has("masters", false) && comm_.size() == 1 &&
                        parts.saved()->has_scalar("bits_down")))
    list_own_params(parts, "masters", is_wide_);
  list_residuals(parts);
  list_replicas(parts);
}

}  // namespace thinwire::zero
