// SPDX-License-Identifier: Apache-2.0
// One compressed step of the momentum, which is computed, encoded, averaged,
// decoded and applied block by block. kernels/sign_compress.h describes the
// arithmetic, and exchange/sign_exchange.h describes the exchange with error
// feedback.
#include "optim/low_bit/momentum/momentum_exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <tuple>
#include <utility>
#include <vector>

#include "core/ranges.h"
#include "exchange/residuals.h"
#include "kernels/pooled_norm.h"
#include "optim/saved_state.h"
#include "thinwire/core/checksum.h"
#include "thinwire/core/error.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::optim {

using kernels::Signs;

void MomentumExchange::average(const StepInput& in, const Coefficients& c,
                               const Apply& apply, StepMeter& step) {
  if (!model_.compresses()) {
    update_alone(in.grads, c);
    model_.for_blocks([&](std::size_t b) { apply(b, form_.current(b)); },
                      in.final_range);
    return;
  }
  const auto own = [&](std::size_t b) {  // x = k (beta1 m + (1 - beta1) g_i)
    auto input = form_.input(b, in.grads, c[model_.layout.block_group[b]]);
    input.factor = form_.unit(b);
    return input;
  };
  step.adding_waits_of(all(), [&](auto& all) {
    const auto take = [&](std::size_t b, Signs mean) {
      apply(b, {.signs = form_.over_unit(mean, b)});
    };
    all.run(own, take, model_.teller(in.final_range));
  });
  form_.keep_as_signs(*all_);
}

void MomentumExchange::launch(const exchange::SignExchange::Source& source,
                              const FinalRange& tell) {
  waited_before_ = all().wait_seconds();
  all_->launch(source, model_.teller(tell));
}

double MomentumExchange::finish(const Apply& apply) {
  all_->finish([&](std::size_t b, Signs m) { apply(b, {.signs = m}); });
  form_.keep_as_signs(*all_);
  return all_->wait_seconds() - waited_before_;
}

void MomentumExchange::update_alone(ConstView grads, const Coefficients& c) {
  const auto m = model_.adam.exp_avg().as<float>();
  model_.for_blocks([&](std::size_t b) {
    const Range& at = model_.block(b);
    kernels::momentum(m.data() + at.offset, grads.subview(at.offset, at.size),
                      c[model_.layout.block_group[b]]);
    const std::uint32_t* const words = active(b);
    if (words == nullptr) return;
    for (std::size_t i = 0; i < at.size; ++i)
      if (!exchange::is_active(words, i)) m[at.offset + i] = 0;
  });
  restored_.add_to(m, active_, form_.units());
}

exchange::SignExchange& MomentumExchange::all() {
  if (!all_) all_ = make_all();
  return *all_;
}

std::unique_ptr<exchange::SignExchange> MomentumExchange::make_all() const {
  auto made = std::make_unique<exchange::SignExchange>(
      model_.comm, model_.groups.get(), model_.pool, model_.layout.blocks,
      exchange::SignExchange::Options{
          .residual_dtype = model_.settings.residual_dtype,
          .keeps_previous = keeps_previous_});
  made->set_active(active_);
  made->set_observer(model_.observer);
  return made;
}

// The first run touches new memory, so only the second one counts.
double MomentumExchange::time_exchange() const {
  const auto all = make_all();
  all->set_observer(nullptr);
  std::size_t longest = 0;
  for (const exchange::Block& block : all->layout().blocks())
    longest = std::max(longest, block.values.size);
  const std::vector<float> zeros(longest);
  double seconds = 0;
  for (int run = 0; run < 2; ++run) {
    const auto begin = std::chrono::steady_clock::now();
    all->run(
        [&](std::size_t) { return kernels::SignInput{.values = zeros.data()}; },
        [](std::size_t, Signs) {});
    seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
            .count();
  }
  return seconds;
}

double MomentumExchange::residual_ratio() const {
  if (!all_) return 0;
  double mean = 0;
  for (std::size_t b = 0; b < all_->layout().blocks().size(); ++b) {
    if (!all_->encodes(b)) continue;
    const double scale = all_->mean(b).scale;
    mean += scale * scale *
            static_cast<double>(all_->active().count(all_->layout(), b));
  }
  const double residual =
      kernels::sum_of_squares(model_.pool, all_->errors().worker.values());
  return mean == 0 ? 0 : std::sqrt(residual / mean);
}

void MomentumExchange::follow_observer() {
  if (all_) all_->set_observer(model_.observer);
}

void MomentumExchange::set_active(exchange::ActiveMask active) {
  active_ = std::move(active);
  if (all_) all_->set_active(active_);
}

namespace {

// Returns a checksum of the blocks that each rank serves. These blocks depend
// on the buckets and on the hosts, even if their number of elements does not.
std::int64_t residual_layout(const LowBitModel& model) {
  std::vector<std::int32_t> servers;
  for (const exchange::Block& block : model.layout.blocks.blocks())
    servers.push_back(block.server);
  const std::vector<int>& ranks = model.comm.hosts().ranks;
  servers.insert(servers.end(), ranks.begin(), ranks.end());
  return static_cast<std::int64_t>(checksum(servers));
}

// Returns the elements of some servers' blocks as joined ranges.
std::vector<Range> elements_of(const exchange::BlockLayout& layout,
                               std::size_t first, std::size_t end) {
  std::vector<Range> ranges;
  for (const exchange::Block& block : layout.blocks()) {
    const auto server = static_cast<std::size_t>(block.server);
    if (server < first || server >= end) continue;
    append_joined(ranges, block.values);
  }
  return ranges;
}

// A low-bit ZeRO state contains only workers' residuals of gradients, and no
// residuals of servers.
bool has_both_residuals(const StateDict& state) {
  return state.has_array("worker_error") && state.has_array("server_error");
}

std::vector<Range> served_elements(const LowBitModel& model) {
  return elements_of(model.layout.blocks, model.places.own,
                     model.places.own + 1);
}

}  // namespace

std::vector<Range> encoded_elements(const LowBitModel& model) {
  return elements_of(model.layout.blocks, model.places.first,
                     model.places.end());
}

std::optional<RankResiduals> take_residuals(StateDict& state,
                                            const LowBitModel& model) {
  if (!has_both_residuals(state)) return std::nullopt;
  const auto take = [&](const char* name, const std::vector<Range>& ranges) {
    return take_floats(state, name, model.settings.residual_dtype,
                       total_size(ranges));
  };
  RankResiduals taken;
  taken.worker = take("worker_error", encoded_elements(model));
  taken.server = take("server_error", served_elements(model));
  return taken;
}

void MomentumExchange::add_to(
    State& state, const std::optional<ResidualViews>& of_gradients) const {
  state.shard = served_elements(model_);
  state.encoded = encoded_elements(model_);
  const auto residuals = of_gradients ? of_gradients
                         : all_ ? ResidualViews{all_->errors().worker.values(),
                                                all_->errors().server.values()}
                                : restored_.views();
  if (!residuals) return;
  state.add_elements(kWorkerError, Sharing::kMean, *state.encoded,
                     residuals->worker);
  state.add_elements("server_error", Sharing::kSharded, state.shard,
                     residuals->server);
}

MomentumExchange::Saved MomentumExchange::read(StateDict& state) const {
  Saved saved{.residuals = take_residuals(state, model_), .all = {}};
  if (saved.residuals && model_.compresses() && !all_) saved.all = make_all();
  return saved;
}

void MomentumExchange::restore(Saved&& saved) {
  clear_residuals();
  if (!saved.residuals) return;
  if (!model_.compresses())
    return restored_.restore(*std::move(saved.residuals));
  if (!all_) all_ = std::move(saved.all);
  all_->errors().take(std::move(saved.residuals->worker),
                      std::move(saved.residuals->server));
}

void MomentumExchange::clear_residuals() {
  if (all_) all_->errors().clear();
  (void)restored_.release();
}

void MomentumExchange::inherit(RankResiduals&& of_gradients,
                               std::span<const HeavyElement> heavy) {
  const exchange::Places& places = model_.places;
  const bool adds = all_ && model_.settings.warmup_bits.hands_over_each_step;
  for (auto [side, own, first, end] :
       {std::tuple(&of_gradients.worker,
                   adds ? all_->errors().worker.values() : ConstView(),
                   places.first, places.end()),
        std::tuple(&of_gradients.server,
                   adds ? all_->errors().server.values() : ConstView(),
                   places.own, places.own + 1)}) {
    if (side->empty()) continue;
    std::size_t at = 0;
    for (std::size_t b = 0; b < model_.num_blocks(); ++b) {
      const exchange::Block& block = model_.layout.blocks.blocks()[b];
      const auto server = static_cast<std::size_t>(block.server);
      if (server < first || server >= end) continue;
      const std::size_t size = block.residual.size;
      exchange::Residual error(side->view(), {at, size});
      inherit_block(b, error.floats(), of_gradients.clip, heavy);
      if (adds)
        kernels::accumulate(std::span(error.floats(), size),
                            own.subview(at, size));
      error.store();
      at += size;
    }
  }
  if (of_gradients.server.empty())
    of_gradients.server =
        model_.compresses()
            ? copy_of(all().errors().server.values())
            : Buffer(of_gradients.worker.size(), of_gradients.worker.dtype());
  if (model_.compresses())
    all().errors().take(std::move(of_gradients.worker),
                        std::move(of_gradients.server));
  else
    restored_.restore(std::move(of_gradients));
}

void MomentumExchange::inherit_block(
    std::size_t b, float* error, double clip,
    std::span<const HeavyElement> heavy) const {
  const Range& at = model_.block(b);
  const double beta1 =
      model_.adam.group_options(model_.layout.block_group[b]).beta1;
  const auto weight = static_cast<float>((1 - beta1) * clip);
  const std::uint32_t* const words = active(b);
  for (std::size_t i = 0; i < at.size; ++i)
    error[i] =
        exchange::is_active(words, i) ? weight * error[i] * form_.unit(b) : 0;
  for (const HeavyElement& element : heavy_in(heavy, at))
    error[element.index - at.offset] *= element.factor;
}

void add_residual_owner(State& state, const LowBitModel& model) {
  if (state.find(kWorkerError) == nullptr) return;
  state.owner.put_integer("world_size", model.comm.size());
  state.owner.put_integer("rank", model.comm.rank());
  state.owner.put_integer("residual_layout", residual_layout(model));
}

void require_residual_owner(const StateDict& state, const LowBitModel& model) {
  if (!has_both_residuals(state)) return;
  const comm::Communicator& comm = model.comm;
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
  if (state.integer("residual_layout") != residual_layout(model))
    throw Error(
        ErrorCode::kCorruptCheckpoint,
        fmt::format("the state's residual_layout is of another bucket size "
                    "than this optimizer's bucket_elements {}, or of other "
                    "hosts",
                    model.settings.exchange.bucket_elements));
}

}  // namespace thinwire::optim
