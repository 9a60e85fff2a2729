// SPDX-License-Identifier: Apache-2.0
// One compressed step of the momentum: formed, encoded, averaged, decoded and
// applied, block by block. kernels/sign_compress.h has the arithmetic,
// exchange/compressed_all_reduce.h the exchange with its error feedback.
#include "optim/low_bit/momentum/momentum_exchange.h"
#include "kernels/pooled_norm.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

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
  const auto own = [&](std::size_t b) {  // k (beta1 m + (1 - beta1) g_i)
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

void MomentumExchange::accept_early(const Apply& apply, StepMeter& step,
                                    const FinalRange& tell) {
  step.adding_waits_of(all(), [&](auto& all) {
    all.accept_early([&](std::size_t b, Signs m) { apply(b, {.signs = m}); },
                     model_.teller(tell));
  });
  form_.keep_as_signs(*all_);
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

exchange::CompressedAllReduce& MomentumExchange::all() {
  if (!all_) all_ = make_all();
  return *all_;
}

std::unique_ptr<exchange::CompressedAllReduce> MomentumExchange::make_all()
    const {
  const exchange::CompressedAllReduceOptions options{
      .residual_dtype = model_.settings.residual_dtype,
      .keeps_previous = keeps_previous_,
      .runs_early = model_.settings.exchange.during_backward && !model_.groups,
      .early_threads = model_.settings.exchange.num_threads};
  auto made = std::make_unique<exchange::CompressedAllReduce>(
      model_.comm, model_.pool, model_.layout.blocks, options,
      model_.groups.get());
  made->set_active(active_);
  made->set_observer(model_.observer);
  return made;
}

// The first run finds memory that was never touched, so the second one counts.
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
      kernels::sum_of_squares(model_.pool, all_->worker_error());
  return mean == 0 ? 0 : std::sqrt(residual / mean);
}

void MomentumExchange::follow_observer() {
  if (all_) all_->set_observer(model_.observer);
}

void MomentumExchange::set_active(exchange::ActiveMask active) {
  active_ = std::move(active);
  if (all_) all_->set_active(active_);
}

}  // namespace thinwire::optim
