// SPDX-License-Identifier: Apache-2.0
#include "optim/low_bit/gradients/low_bit_average.h"

#include <fmt/format.h>

#include <utility>

#include "core/require.h"
#include "core/visit_floats.h"
#include "exchange/exact_average.h"
#include "optim/saved_state.h"
#include "thinwire/core/error.h"
#include "thinwire/core/log.h"
#include "thinwire/core/memory.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::optim {

namespace {

constexpr const char* kBits = "warmup_bits";

float reciprocal(double value) { return static_cast<float>(1 / value); }

}  // namespace

LowBitAverage::LowBitAverage(LowBitModel& model)
    : model_(model),
      bits_(model.settings.warmup_bits.planned),
      restored_(model),
      was_chosen_(!model.settings.warmup_bits.named) {}

void LowBitAverage::tell() {
  if (!std::exchange(was_chosen_, false) || model_.comm.rank() != 0) return;
  log(LogLevel::kInfo,
      fmt::format("{}: total_steps is given and freeze_step is not, so exact "
                  "steps average gradients over {} bits (warmup_bits)",
                  model_.settings.name, bits_));
}

exchange::QuantizedAllReduce& LowBitAverage::exchange() {
  if (exchange_) return *exchange_;
  exchange::BlockOptions blocks = model_.block_options;
  blocks.bits = bits_;
  exchange_ = std::make_unique<exchange::QuantizedAllReduce>(
      model_.comm, model_.pool, model_.layout.units,
      exchange::QuantizedAllReduceOptions{
          .blocks = blocks, .residual_dtype = model_.settings.residual_dtype},
      model_.groups.get());
  return *exchange_;
}

// ---- a bucket at a time

void LowBitAverage::begin(View grads, double loss_scale) {
  grads_ = grads;
  is_added_.assign(model_.layout.blocks.buckets().size(), false);
  exchange().begin(
      [this](std::size_t b) -> ConstView { return model_.gradient(b, grads_); },
      reciprocal(loss_scale));
}

void LowBitAverage::add(std::size_t bucket) {
  if (is_added_[bucket]) return;
  is_added_[bucket] = true;
  exchange().add(bucket);
}

Range LowBitAverage::range_of(std::size_t bucket) const {
  const exchange::Bucket& of = model_.layout.blocks.buckets()[bucket];
  const std::size_t begin = model_.block(of.first_block()).offset;
  return {begin, model_.block(of.end_block() - 1).end() - begin};
}

void LowBitAverage::begin_early(View grads, Range range) {
  if (range.size == 0 || !model_.compresses()) return;
  require(!ready_.touch(range), "range", "apart from what is under way",
          fmt::format("{} of size {}", range.offset, range.size));
  if (!exchange().has_begun()) begin(grads, loss_scale_);
  ready_.add(range);
  for (std::size_t k = is_added_.size(); k-- > 0;)
    if (ready_.cover(range_of(k))) add(k);
}

bool LowBitAverage::was_wrong(const StepInput& in) {
  const double guessed = std::exchange(loss_scale_, in.loss_scale);
  if (!has_begun()) return false;
  require(
      in.grads.data() == grads_.data() && in.grads.dtype() == grads_.dtype(),
      "StepInput.grads", "what reduce() was given since the last step",
      "other memory");
  return guessed != in.loss_scale;
}

void LowBitAverage::abandon() noexcept {
  ready_.clear();
  if (has_begun()) exchange_->abandon();
}

void LowBitAverage::clear(StepReport& report) noexcept {
  abandon();
  if (!exchange_) return;
  exchange_->clear_errors();
  report.residuals_cleared = true;
}

// ---- the whole

View LowBitAverage::average(const StepInput& in, bool begins_anew,
                            StepMeter& step) {
  const View mean = place_of(in.grads);
  if (!restored_.empty()) {  // on a single rank
    write_scaled(in.grads, reciprocal(in.loss_scale), mean.as<float>());
    restored_.add_to(mean.as<float>());
    return mean;
  }
  tell();
  if (begins_anew) abandon();
  step.report().bits = bits_;
  if (!exchange().has_begun()) begin(in.grads, in.loss_scale);
  const std::vector<comm::Work> exact =
      exchange::queue_sums(model_.comm, in.grads, model_.layout.exact,
                           model_.settings.exchange.bucket_elements);
  step.compressed(exchange(), [&](auto& all) {
    for (std::size_t k = 0; k < is_added_.size(); ++k) add(k);
    all.finish();
  });
  step.wait_for(exact);
  ready_.clear();
  decode(mean);
  scale_exact(in, mean);
  return mean;
}

View LowBitAverage::place_of(View grads) {
  if (grads.dtype() == DType::kFloat32) return grads;
  if (mean_.empty()) {
    const MemoryScope scope(MemoryKind::kGradients);
    mean_ = Buffer::of<float>(model_.size());
  }
  return mean_.view();
}

void LowBitAverage::decode(View mean) {
  float* const to = mean.as<float>().data();
  model_.for_blocks(
      [&](std::size_t b) { exchange_->read(b, to + model_.block(b).offset); });
}

// Scales exact groups as the other ones are.
void LowBitAverage::scale_exact(const StepInput& in, View mean) {
  const float factor = reciprocal(
      in.loss_scale * exchange::sum_divisor(model_.comm, in.grads.dtype()));
  for (const Range& r : model_.layout.exact)
    write_scaled(in.grads.subview(r.offset, r.size), factor,
                 mean.as<float>().subspan(r.offset, r.size));
}

// ---- residuals

std::optional<ResidualViews> LowBitAverage::residuals() const {
  if (!exchange_) return restored_.views();
  return ResidualViews{exchange_->worker_error(), exchange_->server_error()};
}

std::optional<RankResiduals> LowBitAverage::release() {
  mean_ = Buffer();
  if (!exchange_) return restored_.release();
  auto [worker, server] = exchange_->release_errors();
  exchange_.reset();
  return RankResiduals{std::move(worker), std::move(server), clip_};
}

void LowBitAverage::add_to(State& state) const {
  if (bits_ != 0) state.common.put_integer(kBits, bits_);
}

int LowBitAverage::bits_after(const StateDict& state, bool begins) const {
  const WarmupBits& own = model_.settings.warmup_bits;
  if (own.named) return *own.named;
  if (!state.has_scalar(kBits)) return begins ? own.planned : 0;
  const std::int64_t saved = state.integer(kBits);
  if (saved != 0 && saved != 4 && saved != 8)
    throw Error(
        ErrorCode::kCorruptCheckpoint,
        fmt::format("the state's {} must be 0, 4 or 8, got {}", kBits, saved));
  return static_cast<int>(saved);
}

bool LowBitAverage::owns_residuals_of(const StateDict& state) {
  return state.has_scalar(kBits) && state.integer(kBits) != 0 &&
         saved_count(state, "frozen_at") == 0;
}

void LowBitAverage::restore(int bits, std::optional<RankResiduals>&& residuals,
                            Notes& notes) {
  abandon();
  exchange_.reset();
  (void)restored_.release();
  bits_ = bits;
  clip_ = 1;
  was_chosen_ = false;
  if (!residuals) return;
  if (bits == 0)
    notes.push_back(
        "warmup_bits is 0, but the state's exact steps sent gradients in few "
        "bits: what rounding took of them is dropped");
  else if (model_.compresses())
    exchange().take_errors(std::move(residuals->worker),
                           std::move(residuals->server));
  else
    restored_.restore(*std::move(residuals));
}

}  // namespace thinwire::optim
