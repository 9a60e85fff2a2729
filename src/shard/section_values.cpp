// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "optim/checks.h"
#include "shard/section.h"
#include "thinwire/core/error.h"
#include "thinwire/core/memory.h"
#include "thinwire/kernels/cast.h"

// What is read, set, moved and saved: whole values, and this rank's shard.
namespace thinwire::shard {

View Section::array(const Fragment& fragment, std::string_view what) {
  const std::size_t flat =
      layout_.parameters()[fragment.parameter].offset + fragment.range.offset;
  if (what == "grad") {
    std::size_t b = 0;
    while (shards_.buckets()[b].range.end() <= flat) ++b;
    return gradients_.piece(b).subview(flat - own(b).offset,
                                       fragment.range.size);
  }
  if (what != "param")
    return rule().state(what).subview(fragment.position, fragment.range.size);
  return has_masters_
             ? masters_.view().subview(fragment.position, fragment.range.size)
             : params_.subview(flat, fragment.range.size);
}

// On all ranks, whether they own elements of the parameter or not.
void Section::require_array(std::string_view what) const {
  if (what == "grad") return;
  require_states();
  if (what != "param") static_cast<void>(rule_->state(what));
}

std::vector<float> Section::read(std::size_t parameter, std::string_view what) {
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

void Section::write(std::size_t parameter, std::string_view what,
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

void Section::read_masters(ConstView params) {
  if (!has_masters_) return;
  require_states();
  for (std::size_t b = 0; b < shards_.buckets().size(); ++b)
    kernels::convert(params.subview(own(b).offset, own(b).size),
                     masters_.view().subview(position(b), own(b).size));
}

// ---- states elsewhere

void Section::offload_states() {
  if (rule_ == nullptr) return;
  rule_->save(parked_);
  if (has_masters_) parked_.put("masters", masters_.view());
  rule_.reset();
  masters_ = Buffer(0, masters_.dtype());
}

void Section::reload_states() {
  if (rule_ != nullptr) return;
  const MemoryScope scope(MemoryKind::kStates);
  auto rule = make_rule_(shard_layout_);
  rule->load(parked_);
  if (has_masters_) {
    const ConstView masters = parked_.array("masters");
    masters_ = Buffer(masters.size(), masters.dtype());
    kernels::convert(masters, masters_.view());
  }
  rule_ = std::move(rule);
  parked_ = {};
}

void Section::save(StateDict& state, const std::string& prefix) const {
  StateDict own;
  rule().save(own);
  if (has_masters_) own.put("masters", masters_.view());
  own.put_text("optimizer", std::string(rule().name()));
  own.put_text("shards", shards_.describe());
  state.put_all(prefix, own);
}

void Section::require_fits(const StateDict& state,
                           const std::string& prefix) const {
  require_states();
  const StateDict own = state.part(prefix);
  static_cast<void>(masters_in(own));
  make_rule_(shard_layout_)->load(own);
}

ConstView Section::masters_in(const StateDict& own) const {
  optim::require_text(own, "optimizer", rule().name());
  if (own.text("shards") != shards_.describe())
    throw Error(ErrorCode::kCorruptCheckpoint,
                fmt::format("the state is of other shards: '{}', not '{}'",
                            own.text("shards").substr(0, 60),
                            shards_.describe().substr(0, 60)));
  return has_masters_ ? own.array("masters", masters_.dtype(), masters_.size())
                      : ConstView{};
}

void Section::load(const StateDict& state, const std::string& prefix) {
  require_states();
  const StateDict own = state.part(prefix);
  const ConstView masters = masters_in(own);
  rule_->load(own);
  if (has_masters_) kernels::convert(masters, masters_.view());
}

}  // namespace thinwire::shard
