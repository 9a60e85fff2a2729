// SPDX-License-Identifier: Apache-2.0
// The momentum and its residuals, saved and loaded.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include "exchange/residuals.h"
#include "optim/low_bit/momentum/momentum.h"
#include "optim/saved_state.h"
#include "thinwire/core/checksum.h"
#include "thinwire/core/error.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::optim {

namespace {

// Which blocks this rank serves depends on the buckets, how many elements they
// have may not. Who shares a host decides whose they are.
std::int64_t residual_layout(const LowBitModel& model,
                             const exchange::BlockLayout& layout) {
  std::vector<std::int32_t> servers;
  for (const exchange::Block& block : layout.blocks())
    servers.push_back(block.server);
  const std::vector<int>& ranks = model.comm.hosts().ranks;
  servers.insert(servers.end(), ranks.begin(), ranks.end());
  return static_cast<std::int64_t>(checksum(servers));
}

// Unless told otherwise, buckets had 2^20 elements until version 0.5, and by
// host at least as many for each rank of a host until 0.7.0. A rank has not got
// what another one served then.
[[noreturn]] void refuse_residual_layout(const LowBitModel& model,
                                         std::int64_t saved) {
  const std::size_t own = model.settings.exchange.bucket_elements;
  const std::string what = fmt::format(
      "the state's residual_layout is of another bucket size than this "
      "optimizer's bucket_elements {}",
      own);
  for (const int ranks : {1, model.comm.hosts().ranks_per_host}) {
    exchange::BlockOptions former = model.block_options;
    former.bucket_elements = static_cast<std::size_t>(ranks) << 20;
    if (!model.has_given_blocks &&
        saved == residual_layout(
                     model, exchange::BlockLayout(model.layout.units, former)))
      throw Error(
          ErrorCode::kCorruptCheckpoint,
          fmt::format("{}: set it to {}, the default of earlier versions", what,
                      former.bucket_elements));
  }
  throw Error(ErrorCode::kCorruptCheckpoint, what + ", or of other hosts");
}

// Elements of the blocks of some servers, as few ranges as possible.
std::vector<Range> elements_of(const exchange::BlockLayout& layout,
                               std::size_t first, std::size_t end) {
  std::vector<Range> ranges;
  for (const exchange::Block& block : layout.blocks()) {
    const auto server = static_cast<std::size_t>(block.server);
    if (server < first || server >= end) continue;
    if (!ranges.empty() && ranges.back().end() == block.values.offset)
      ranges.back().size += block.values.size;
    else
      ranges.push_back(block.values);
  }
  return ranges;
}

// ZeRO's over few bits are those of gradients, and have no server's.
bool has_residuals_of_momentum(const StateDict& state) {
  return state.has_array("worker_error") && state.has_array("server_error");
}

std::size_t size_of(const std::vector<Range>& ranges) {
  std::size_t size = 0;
  for (const Range& range : ranges) size += range.size;
  return size;
}

}  // namespace

void CompressedMomentum::read(Range range, std::span<float> to) const {
  const auto kept = std::as_const(model_.adam).exp_avg().as<float>();
  if (kept.empty())
    std::ranges::fill(to, 0.0f);
  else
    std::ranges::copy(kept.subspan(range.offset, range.size), to.begin());
  if (!is_signs_) return;
  const auto blocks = model_.layout.blocks.blocks();
  const auto first = std::ranges::partition_point(
      blocks, [&](const auto& b) { return b.values.end() <= range.offset; });
  for (auto b = static_cast<std::size_t>(first - blocks.begin());
       b < blocks.size() && blocks[b].values.offset < range.end(); ++b) {
    const Range& at = blocks[b].values;
    std::array<float, 1024> values;  // blocks are no longer
    kernels::sign_decode(mean(b), active(b), values.data(), at.size);
    const std::size_t begin = std::max(at.offset, range.offset);
    const std::size_t end = std::min(at.end(), range.end());
    std::copy(values.begin() + static_cast<std::ptrdiff_t>(begin - at.offset),
              values.begin() + static_cast<std::ptrdiff_t>(end - at.offset),
              to.begin() + static_cast<std::ptrdiff_t>(begin - range.offset));
  }
}

void CompressedMomentum::add_to(
    State& state, Sharing sharing,
    const std::optional<LowBitAverage::Views>& of_gradients) const {
  const std::vector<Range> whole = {{0, model_.size()}};
  state.arrays.push_back(
      {.name = "exp_avg",
       .dtype = DType::kFloat32,
       .axis = Axis::kElement,
       .sharing = sharing,
       .size = model_.size(),
       .ranges = whole,
       .read = [this](Range range, View to) { read(range, to.as<float>()); }});
  if (!participation_.empty())
    state.add_elements("participation", Sharing::kSame, whole, participation_);
  late_.add_to(state);
  const exchange::BlockLayout& blocks = model_.layout.blocks;
  const exchange::Places& places = model_.places;
  state.shard = elements_of(blocks, places.own, places.own + 1);
  state.encoded = encoded();
  const auto owed = of_gradients ? of_gradients : residuals();
  if (!owed) return;
  state.add_elements(kWorkerError, Sharing::kMean, *state.encoded,
                     owed->worker);
  state.add_elements("server_error", Sharing::kSharded, state.shard,
                     owed->server);
}

std::optional<LowBitAverage::Views> CompressedMomentum::residuals() const {
  if (exchange_)
    return LowBitAverage::Views{exchange_->worker_error(),
                                exchange_->server_error()};
  if (!has_debt()) return std::nullopt;
  return LowBitAverage::Views{debt_.worker.view(), debt_.server.view()};
}

std::vector<Range> CompressedMomentum::encoded() const {
  return elements_of(model_.layout.blocks, model_.places.first,
                     model_.places.end());
}

CompressedMomentum::Residuals CompressedMomentum::take_residuals(
    StateDict& state, bool of_gradients) const {
  if (!has_residuals_of_momentum(state)) return {};
  const DType dtype = model_.settings.residual_dtype;
  const exchange::BlockLayout& blocks = model_.layout.blocks;
  const exchange::Places& places = model_.places;
  const auto take = [&](const char* name, std::size_t first, std::size_t end) {
    return take_floats(state, name, dtype,
                       size_of(elements_of(blocks, first, end)));
  };
  Residuals taken;
  taken.are_there = true;
  taken.worker = take("worker_error", places.first, places.end());
  taken.server = take("server_error", places.own, places.own + 1);
  if (model_.compresses() && !exchange_ && !of_gradients)
    taken.exchange = make_exchange();
  return taken;
}

// Where there is nothing to restore, an exchange that is there has none.
void CompressedMomentum::restore(Residuals&& residuals) {
  clear_residuals();
  if (!residuals.are_there) return;
  if (!model_.compresses()) {
    debt_ = std::move(residuals);
    return;
  }
  if (!exchange_) exchange_ = std::move(residuals.exchange);
  exchange_->take_errors(std::move(residuals.worker),
                         std::move(residuals.server));
}

void CompressedMomentum::clear_residuals() {
  if (exchange_) exchange_->clear_errors();
  forget_debt();
}

namespace {

void add_floats(ConstView values, float* to) {
  std::vector<float> floats(values.size());
  kernels::convert(values, std::span(floats));
  for (std::size_t i = 0; i < floats.size(); ++i) to[i] += floats[i];
}

}  // namespace

void CompressedMomentum::inherit(GradientResiduals&& owed,
                                 std::span<const HeavyElement> heavy) {
  const exchange::Places& places = model_.places;
  using Error = ConstView (exchange::CompressedAllReduce::*)() const noexcept;
  for (auto [side, own, first, end] :
       {std::tuple(&owed.worker,
                   Error(&exchange::CompressedAllReduce::worker_error),
                   places.first, places.end()),
        std::tuple(&owed.server,
                   Error(&exchange::CompressedAllReduce::server_error),
                   places.own, places.own + 1)}) {
    const ConstView before = exchange_ ? ((*exchange_).*own)() : ConstView();
    std::size_t at = 0;
    for (std::size_t b = 0; b < model_.num_blocks(); ++b) {
      const exchange::Block& block = model_.layout.blocks.blocks()[b];
      const auto server = static_cast<std::size_t>(block.server);
      if (server < first || server >= end) continue;
      exchange::Residual error(side->view(), {at, block.residual.size});
      inherit_block(b, error.floats(), owed.clip, heavy);
      if (!before.empty())
        add_floats(before.subview(at, block.residual.size), error.floats());
      error.store();
      at += block.residual.size;
    }
  }
  if (model_.compresses())
    exchange().take_errors(std::move(owed.worker), std::move(owed.server));
  else
    debt_ = {std::move(owed.worker), std::move(owed.server), true};
}

void CompressedMomentum::inherit_block(
    std::size_t b, float* error, double clip,
    std::span<const HeavyElement> heavy) const {
  const Range& at = model_.block(b);
  const double beta1 =
      model_.adam.group_options(model_.layout.block_group[b]).beta1;
  const auto weight = static_cast<float>((1 - beta1) * clip);
  for (std::size_t i = 0; i < at.size; ++i)
    error[i] = takes_part(at.offset + i) ? weight * error[i] * unit(b) : 0;
  for (const HeavyElement& element : heavy)
    if (at.offset <= element.index && element.index < at.end())
      error[element.index - at.offset] *= element.factor;
}

void CompressedMomentum::add_owner(State& state) const {
  if (state.find(kWorkerError) == nullptr) return;
  state.owner.put_integer("world_size", model_.comm.size());
  state.owner.put_integer("rank", model_.comm.rank());
  state.owner.put_integer("residual_layout",
                          residual_layout(model_, model_.layout.blocks));
}

void CompressedMomentum::require_owner(const StateDict& state) const {
  if (!has_residuals_of_momentum(state)) return;
  const comm::Communicator& comm = model_.comm;
  if (state.integer("world_size") != comm.size() ||
      state.integer("rank") != comm.rank())
    throw Error(
        ErrorCode::kCorruptCheckpoint,
        fmt::format("residuals of rank {} of {} do not fit rank {} of {}",
                    state.integer("rank"), state.integer("world_size"),
                    comm.rank(), comm.size()));
  const std::int64_t saved = saved_ranks_per_host(state);
  if (saved != comm.hosts().ranks_per_host)
    throw Error(ErrorCode::kCorruptCheckpoint,
                fmt::format("residuals of {} ranks per host do not fit {}",
                            saved, comm.hosts().ranks_per_host));
  if (const std::int64_t layout = state.integer("residual_layout");
      layout != residual_layout(model_, model_.layout.blocks))
    refuse_residual_layout(model_, layout);
}

LateElements CompressedMomentum::saved_late(
    const StateDict& state, const std::vector<std::uint8_t>& elements) const {
  LateElements late(model_.layout.blocks, elements);
  late.load_memory(state, model_.size());
  return late;
}

}  // namespace thinwire::optim
