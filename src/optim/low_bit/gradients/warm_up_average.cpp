// SPDX-License-Identifier: Apache-2.0
#include "optim/low_bit/gradients/warm_up_average.h"

#include <fmt/format.h>

#include <utility>

#include "core/require.h"
#include "core/visit_floats.h"
#include "exchange/codec/codec.h"
#include "exchange/exact_average.h"
#include "exchange/residuals.h"
#include "optim/saved_state.h"
#include "thinwire/core/error.h"
#include "thinwire/core/log.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::optim {

namespace {

constexpr const char* kBits = "warmup_bits";

float reciprocal(double value) { return static_cast<float>(1 / value); }

}  // namespace

WarmUpAverage::WarmUpAverage(LowBitModel& model)
    : model_(model),
      bits_(model.settings.warmup_bits.planned),
      restored_(model),
      was_chosen_(!model.settings.warmup_bits.named) {}

void WarmUpAverage::tell() {
  if (!std::exchange(was_chosen_, false) || model_.comm.rank() != 0) return;
  const bool freezes = !model_.settings.warmup_bits.hands_over_each_step;
  log(LogLevel::kInfo,
      fmt::format(
          "{}: total_steps is given{}, so {} average gradients over {} "
          "bits (warmup_bits)",
          model_.settings.name, freezes ? " and freeze_step is not" : "",
          freezes ? "exact steps" : "steps that update the variance", bits_));
}

// Returns the exchange, which uses the momentum's blocks, buckets and servers.
// Runs overwrite the residuals.
exchange::LowBitExchange& WarmUpAverage::exchange() {
  if (exchange_) return *exchange_;
  exchange_ = std::make_unique<exchange::LowBitExchange>(
      exchange::Route{model_.comm, model_.groups.get()}, model_.pool,
      model_.layout.blocks, exchange::codec_of(bits_),
      exchange::Pipeline::Options(),
      exchange::Residuals(model_.layout.blocks, model_.places,
                          model_.settings.residual_dtype));
  return *exchange_;
}

// ---- a bucket at a time

bool WarmUpAverage::has_begun() const {
  return exchange_ != nullptr && exchange_->has_begun();
}

void WarmUpAverage::begin(View grads, double loss_scale) {
  grads_ = grads;
  loss_scale_ = loss_scale;
  is_added_.assign(model_.layout.blocks.buckets().size(), false);
  exchange().begin(
      [this](std::size_t b) -> ConstView { return model_.gradient(b, grads_); },
      reciprocal(loss_scale));
}

void WarmUpAverage::add(std::size_t bucket) {
  if (is_added_[bucket]) return;
  is_added_[bucket] = true;
  exchange().ready(bucket);
}

Range WarmUpAverage::range_of(std::size_t bucket) const {
  const exchange::Bucket& of = model_.layout.blocks.buckets()[bucket];
  const std::size_t begin = model_.block(of.first_block()).offset;
  return {begin, model_.block(of.end_block() - 1).end() - begin};
}

void WarmUpAverage::begin_early(View grads, Range range, double loss_scale) {
  if (range.size == 0 || !model_.compresses()) return;
  require(!ready_.touch(range), "range", "apart from ranges in flight",
          fmt::format("{} of size {}", range.offset, range.size));
  if (!has_begun()) begin(grads, loss_scale);
  ready_.add(range);
  for (std::size_t k = is_added_.size(); k-- > 0;)
    if (ready_.cover(range_of(k))) add(k);
}

bool WarmUpAverage::was_wrong(const StepInput& in) const {
  if (!has_begun()) return false;
  require(
      in.grads.data() == grads_.data() && in.grads.dtype() == grads_.dtype(),
      "StepInput.grads", "what reduce() was given since the last step",
      "other memory");
  return loss_scale_ != in.loss_scale;
}

void WarmUpAverage::abandon() noexcept {
  ready_.clear();
  if (!has_begun()) return;
  exchange_->drop();
  exchange_->residuals.drop();
}

void WarmUpAverage::clear(StepReport& report) noexcept {
  abandon();
  if (!exchange_) return;
  exchange_->residuals.clear();
  report.residuals_cleared = !model_.settings.warmup_bits.hands_over_each_step;
}

// ---- the whole

View WarmUpAverage::average(const StepInput& in, bool begins_anew,
                            StepMeter& step) {
  const View mean = mean_.place_of(in.grads);
  if (!restored_.empty()) {  // only on a single rank
    write_scaled(in.grads, reciprocal(in.loss_scale), mean.as<float>());
    restored_.add_to(mean.as<float>());
    return mean;
  }
  tell();
  if (begins_anew) abandon();
  step.report().bits = bits_;
  if (!has_begun()) begin(in.grads, in.loss_scale);
  const std::vector<comm::Work> exact =
      exchange::queue_sums(model_.comm, in.grads, model_.layout.exact,
                           model_.settings.exchange.bucket_elements);
  step.adding_waits_of(*exchange_, [&](auto& all) {
    for (std::size_t k = 0; k < is_added_.size(); ++k) add(k);
    all.write_to({.values = mean, .saturates = false});
    static_cast<void>(all.finish());
  });
  step.wait_for(exact);
  ready_.clear();
  scale_exact(in, mean);
  return mean;
}

// Multiplies exact groups by the same factor as the other groups.
void WarmUpAverage::scale_exact(const StepInput& in, View mean) {
  const float factor = reciprocal(
      in.loss_scale * exchange::sum_divisor(model_.comm, in.grads.dtype()));
  for (const Range& r : model_.layout.exact)
    write_scaled(in.grads.subview(r.offset, r.size), factor,
                 mean.as<float>().subspan(r.offset, r.size));
}

// ---- residuals

std::optional<ResidualViews> WarmUpAverage::residuals() const {
  if (!exchange_) return restored_.views();
  // After a skipped step these residuals are 0, and the momentum has separate
  // ones.
  if (model_.settings.warmup_bits.hands_over_each_step) return std::nullopt;
  return ResidualViews{exchange_->residuals.worker.values(),
                       exchange_->residuals.server.values()};
}

std::optional<RankResiduals> WarmUpAverage::release() {
  mean_.release();
  if (!exchange_) return restored_.release();
  RankResiduals released{exchange_->residuals.worker.release(),
                         exchange_->residuals.server.release(), clip_};
  exchange_.reset();
  return released;
}

void WarmUpAverage::save_bits(State& state, int bits) {
  if (bits != 0) state.common.put_integer(kBits, bits);
}

int WarmUpAverage::saved_bits(const StateDict& state, const WarmupBits& own,
                              bool begins) {
  if (own.named) return *own.named;
  if (!state.has_scalar(kBits)) return begins ? own.planned : 0;
  const std::int64_t saved = state.integer(kBits);
  const int bits =
      saved == static_cast<int>(saved) ? static_cast<int>(saved) : -1;
  if (bits != 0 && !exchange::has_codec(bits))
    throw Error(ErrorCode::kCorruptCheckpoint,
                fmt::format("the state's {} must be {}, got {}", kBits,
                            exchange::known_bits(/*or_exact=*/true), saved));
  return bits;
}

bool WarmUpAverage::owns_residuals_of(const StateDict& state) {
  return state.has_scalar(kBits) && state.integer(kBits) != 0 &&
         state.has_scalar("frozen_at") && saved_count(state, "frozen_at") == 0;
}

void WarmUpAverage::restore(int bits, std::optional<RankResiduals>&& residuals,
                            Notes& notes) {
  abandon();
  exchange_.reset();
  (void)restored_.release();
  bits_ = bits;
  clip_ = 1;
  was_chosen_ = false;
  if (!residuals) return;
  if (bits == 0)
    notes.emplace_back(kDropped);
  else if (model_.compresses())
    exchange().residuals.take(std::move(residuals->worker),
                              std::move(residuals->server));
  else
    restored_.restore(*std::move(residuals));
}

}  // namespace thinwire::optim
