// SPDX-License-Identifier: Apache-2.0
#include "optim/averages/unit_average.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/require.h"
#include "core/require_view.h"
#include "exchange/pipeline/places.h"
#include "optim/saved_state.h"
#include "thinwire/core/error.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::optim {

namespace {

// Smallest number of elements that are sent together before the step.
constexpr std::size_t kPart = std::size_t{1} << 18;

constexpr const char* kLayout = "residual_layout";

}  // namespace

UnitAverage::UnitAverage(comm::Communicator& comm, ThreadPool& pool,
                         const ParameterLayout& layout,
                         const AverageOptions& options,
                         std::size_t part_elements)
    : comm_(comm),
      pool_(pool),
      layout_(layout),
      options_(options),
      part_(part_elements == 0 ? kPart : part_elements),
      groups_(exchange::groups_unless_flat(comm)) {
  if (!sends()) return;
  mean_ = make_mean();
  for (std::size_t i = 0; i < layout.parameters().size(); ++i) {
    const Parameter& p = layout.parameters()[i];
    if (p.size > 0) units_.push_back({i, {p.offset, p.size}});
  }
  is_begun_.assign(units_.size(), false);
}

UnitAverage::~UnitAverage() {
  if (mean_) mean_->mean().drop();
}

// ---- a part at a time

void UnitAverage::begin_early(View grads, Range range) {
  require_view("grads", grads, layout_.size(), true, true);
  if (range.size == 0 || !sends()) return;
  require(
      range.offset <= layout_.size() &&
          range.size <= layout_.size() - range.offset && !ready_.touch(range),
      "range",
      fmt::format("within {} and apart from ranges in flight", layout_.size()),
      fmt::format("{} of size {}", range.offset, range.size));
  ready_.add(range);
  if (!loss_scale_) return;  // because a wrong guess wastes an exchange
  if (!has_begun_) {
    grads_ = grads;
    begun_scale_ = *loss_scale_;
    mean_->describe_step(described_);
    // If the loss scale has changed, the next guess may be wrong.
    place_ =
        begun_scale_ == 1 ? wide_.place_of(grads) : wide_.apart_from(grads);
  }
  begin_parts(part_);
}

bool UnitAverage::is_pending(std::size_t unit) const {
  return !is_begun_[unit] && ready_.cover(units_[unit].range);
}

// Begins parts of at least `least` elements in the order of backward, which
// produces the last parameters first. Later calls begin the rest of adjacent
// parameters.
void UnitAverage::begin_parts(std::size_t least) {
  for (std::size_t end = units_.size(); end > 0;) {
    std::size_t first = end;
    std::size_t size = 0;
    while (first > 0 && size < part_ && is_pending(first - 1))
      size += units_[--first].range.size;
    if (first == end) {
      --end;
      continue;
    }
    if (size >= least) begin_part(first, end);
    end = first;
  }
}

void UnitAverage::begin_part(std::size_t first, std::size_t end) {
  std::vector<std::size_t> indexes;
  for (std::size_t unit = first; unit < end; ++unit) {
    indexes.push_back(units_[unit].index);
    is_begun_[unit] = true;
  }
  const std::size_t begin = units_[first].range.offset;
  const Range range{begin, units_[end - 1].range.end() - begin};
  const View values = place_.subview(range.offset, range.size);
  if (place_.data() != grads_.data())
    kernels::convert(grads_.subview(range.offset, range.size), values);
  has_begun_ = true;
  note(mean_->mean().begin(
      {.values = values, .units = indexes, .loss_scale = begun_scale_}));
}

void UnitAverage::note(const std::vector<bool>& completed) {
  for (const bool is_finite : completed) is_finite_ = is_finite_ && is_finite;
}

// ---- the whole

bool UnitAverage::is_wrong(const StepInput& in) const {
  if (!has_begun_) return false;
  require(
      in.grads.data() == grads_.data() && in.grads.dtype() == grads_.dtype(),
      "StepInput.grads", "those that reduce() got since the last step",
      "other memory");
  return begun_scale_ != in.loss_scale;
}

void UnitAverage::begin_anew() {
  mean_->mean().drop();
  is_begun_.assign(units_.size(), false);
  is_finite_ = true;
  has_begun_ = false;
  ready_.clear();
}

View UnitAverage::average(const StepInput& in, StepMeter& step) {
  if (!sends()) return with_owed(in);
  if (is_wrong(in)) {
    begin_anew();
    require(place_.data() != grads_.data(), "loss_scale",
            "1, with which reduce() has averaged these gradients",
            in.loss_scale);
  }
  exchange::UnitMean& mean = mean_->mean();
  if (!has_begun_) {
    grads_ = in.grads;
    place_ = wide_.place_of(in.grads);
    begun_scale_ = in.loss_scale;
    mean_->describe_step(described_);
  }
  step.report().bits = described_.bits;
  step.report().low_rank = described_.low_rank;
  ready_.clear();
  ready_.add({0, layout_.size()});
  begin_parts(1);
  note(mean.finish());
  step.add(mean.wait_seconds() - waited_);
  waited_ = mean.wait_seconds();
  loss_scale_ = in.loss_scale;
  ready_.clear();
  is_begun_.assign(units_.size(), false);
  has_begun_ = false;
  return place_;
}

void UnitAverage::end_step(bool counts) {
  const bool is_finite = std::exchange(is_finite_, true);
  if (mean_) mean_->mean().end_step(counts && is_finite);
  if (counts && !sends()) owed_.reset();
}

// A single rank adds the residuals restored from several ranks to its gradient.
View UnitAverage::with_owed(const StepInput& in) {
  if (!owed_) return in.grads;
  const View sum = wide_.place_of(in.grads);
  if (sum.data() != in.grads.data()) kernels::convert(in.grads, sum);
  const auto x = sum.as<float>();
  const auto e = std::as_const(owed_->worker).view().as<float>();
  const auto d = std::as_const(owed_->server).view().as<float>();
  const auto scale = static_cast<float>(in.loss_scale);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] += (d[i] + e[i]) * scale;
  return sum;
}

// ---- the state

void UnitAverage::add_to(State& state) const {
  if (has_begun_)
    refuse(
        "state: called between reduce() and step(), with bits or low_rank; "
        "call step() first");
  if (!sends()) {
    state.shard = {{0, layout_.size()}};
    state.encoded = state.shard;
    if (owed_)
      add_unit_errors(
          state,
          {kAverageWorkerError, kAverageServerError, state.shard, state.shard},
          owed_->worker.view(), owed_->server.view());
  } else {
    const UnitResidualParts parts = mean_->parts();
    state.shard = parts.served;
    state.encoded = parts.encoded;
    mean_->add_to(state);
    state.owner.put_integer(kLayout, mean_->servers());
  }
  state.common.put_integer(kAverageBits, options_.bits);
  state.common.put_integer(kLowRank, options_.low_rank);
  add_hosts(state, comm_.hosts());
  state.owner.put_integer("world_size", comm_.size());
  state.owner.put_integer("rank", comm_.rank());
}

Adoption UnitAverage::adopt(StateDict& state, Notes& notes) {
  static_cast<void>(saved_average(state));
  if (state.has_array(kWorkerError))
    notes.emplace_back(
        "the state's residuals are dropped: they belong to ZeRO or to a 1-bit "
        "optimizer");
  if (!sends()) {
    const std::vector<Range> all = {{0, layout_.size()}};
    auto owed = std::make_shared<std::optional<UnitErrors>>(take_unit_errors(
        state, {kAverageWorkerError, kAverageServerError, all, all},
        layout_.size()));
    return [this, owed] { owed_ = std::move(*owed); };
  }
  const auto made = std::make_shared<std::unique_ptr<KeptMean>>(make_mean());
  (*made)->load(take_unit_errors(state, (*made)->parts(), layout_.size()),
                state, notes);
  return [this, made] {
    mean_->mean().drop();
    mean_ = std::move(*made);
    waited_ = 0;
  };
}

void UnitAverage::require_owner(const StateDict& state) const {
  // States without an owner's rank have dropped their residuals on purpose.
  if (state.has_scalar("world_size") && state.integer("world_size") > 1 &&
      !saved_average(state).is_exact()) {
    for (const char* name : {kAverageWorkerError, kAverageServerError})
      static_cast<void>(state.array(name));
  } else if (!state.has_array(kAverageWorkerError)) {
    return;
  }
  if (state.integer("world_size") != comm_.size() ||
      state.integer("rank") != comm_.rank())
    throw Error(ErrorCode::kCorruptCheckpoint,
                fmt::format("residuals of rank {} of {} do not fit rank {} of "
                            "{}",
                            state.integer("rank"), state.integer("world_size"),
                            comm_.rank(), comm_.size()));
  if (!sends()) return;
  if (state.integer(kLayout) != mean_->servers())
    throw Error(ErrorCode::kCorruptCheckpoint,
                "the state's residuals are for other hosts, or for low_rank "
                "instead of bits: save and load files");
  mean_->require_own(state);
}

void note_unused_averages(const StateDict& state, Notes& notes) {
  static_cast<void>(saved_average(state));
  if (state.has_array(kAverageWorkerError))
    notes.emplace_back(
        "the residuals of low-bit or low-rank averages of gradients are "
        "dropped: this optimizer averages otherwise");
}

}  // namespace thinwire::optim
