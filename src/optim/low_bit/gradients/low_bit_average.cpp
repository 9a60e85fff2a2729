// SPDX-License-Identifier: Apache-2.0
#include "optim/low_bit/gradients/low_bit_average.h"

#include <fmt/format.h>

#include <utility>

#include "core/require.h"
#include "core/visit_floats.h"
#include "exchange/exact_average.h"
#include "exchange/records/quantized_records.h"
#include "exchange/records/two_phase_exchange.h"
#include "exchange/residuals.h"
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

// Blocks, buckets and servers are those of the momentum's exchange. Records
// have more bits.
struct LowBitAverage::Exchange {
  Exchange(LowBitModel& model, const exchange::BlockOptions& blocks)
      : bits(blocks.bits),
        layout(model.layout.units, blocks),
        records(model.comm, model.groups.get(), model.pool, layout,
                /*keeps_previous=*/false),
        residuals(layout, records.places(), model.settings.residual_dtype) {}

  // Begins a run over values(block) * factor.
  void begin(std::function<ConstView(std::size_t block)> values, float factor) {
    const auto sum = [](const exchange::KeptResidual& kept) {
      return kernels::QuantizedSum{.residual = kept.values,
                                   .error = kept.values};
    };
    records.begin(exchange::quantized_steps(
        records, bits,
        {.worker =
             [this, sum, values = std::move(values), factor](std::size_t b) {
               kernels::QuantizedSum own = sum(residuals.worker.kept(b));
               own.values = values(b);
               own.factor = factor;
               return own;
             },
         .server = [this, sum](
                       std::size_t b) { return sum(residuals.server.kept(b)); },
         .deliver = {}}));
  }

  const int bits;
  const exchange::BlockLayout layout;
  exchange::TwoPhaseExchange records;
  exchange::Residuals residuals;
};

LowBitAverage::LowBitAverage(LowBitModel& model)
    : model_(model),
      bits_(model.settings.warmup_bits.planned),
      restored_(model),
      was_chosen_(!model.settings.warmup_bits.named) {}

LowBitAverage::~LowBitAverage() = default;

void LowBitAverage::tell() {
  if (!std::exchange(was_chosen_, false) || model_.comm.rank() != 0) return;
  log(LogLevel::kInfo,
      fmt::format("{}: total_steps is given and freeze_step is not, so exact "
                  "steps average gradients over {} bits (warmup_bits)",
                  model_.settings.name, bits_));
}

LowBitAverage::Exchange& LowBitAverage::exchange() {
  if (exchange_) return *exchange_;
  exchange::BlockOptions blocks = model_.block_options();
  blocks.bits = bits_;
  exchange_ = std::make_unique<Exchange>(model_, blocks);
  return *exchange_;
}

// ---- a bucket at a time

bool LowBitAverage::has_begun() const {
  return exchange_ != nullptr && exchange_->records.has_begun();
}

void LowBitAverage::begin(View grads, double loss_scale) {
  grads_ = grads;
  loss_scale_ = loss_scale;
  is_added_.assign(model_.layout.blocks.buckets().size(), false);
  exchange().begin(
      [this](std::size_t b) -> ConstView { return model_.gradient(b, grads_); },
      reciprocal(loss_scale));
}

void LowBitAverage::add(std::size_t bucket) {
  if (is_added_[bucket]) return;
  is_added_[bucket] = true;
  exchange().records.add(bucket);
}

Range LowBitAverage::range_of(std::size_t bucket) const {
  const exchange::Bucket& of = model_.layout.blocks.buckets()[bucket];
  const std::size_t begin = model_.block(of.first_block()).offset;
  return {begin, model_.block(of.end_block() - 1).end() - begin};
}

void LowBitAverage::begin_early(View grads, Range range, double loss_scale) {
  if (range.size == 0 || !model_.compresses()) return;
  require(!ready_.touch(range), "range", "apart from what is under way",
          fmt::format("{} of size {}", range.offset, range.size));
  if (!has_begun()) begin(grads, loss_scale);
  ready_.add(range);
  for (std::size_t k = is_added_.size(); k-- > 0;)
    if (ready_.cover(range_of(k))) add(k);
}

bool LowBitAverage::was_wrong(const StepInput& in) const {
  if (!has_begun()) return false;
  require(
      in.grads.data() == grads_.data() && in.grads.dtype() == grads_.dtype(),
      "StepInput.grads", "what reduce() was given since the last step",
      "other memory");
  return loss_scale_ != in.loss_scale;
}

void LowBitAverage::abandon() noexcept {
  ready_.clear();
  if (!has_begun()) return;
  exchange_->records.abandon();
  exchange_->residuals.clear();
}

void LowBitAverage::clear(StepReport& report) noexcept {
  abandon();
  if (!exchange_) return;
  exchange_->residuals.clear();
  report.residuals_cleared = !model_.settings.warmup_bits.hands_over_each_step;
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
  if (!has_begun()) begin(in.grads, in.loss_scale);
  const std::vector<comm::Work> exact =
      exchange::queue_sums(model_.comm, in.grads, model_.layout.exact,
                           model_.settings.exchange.bucket_elements);
  step.adding_waits_of(exchange_->records, [&](auto& all) {
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
  model_.for_blocks([&](std::size_t b) {
    const Range& at = model_.block(b);
    (void)exchange::read_quantized(exchange_->records, bits_, b,
                                   {to + at.offset, at.size});
  });
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
  // After a step that was skipped they are 0, and the momentum has its own.
  if (model_.settings.warmup_bits.hands_over_each_step) return std::nullopt;
  const exchange::Residuals& kept = exchange_->residuals;
  return ResidualViews{kept.worker.values.view(), kept.server.values.view()};
}

std::optional<RankResiduals> LowBitAverage::release() {
  mean_ = Buffer();
  if (!exchange_) return restored_.release();
  exchange::Residuals& kept = exchange_->residuals;
  RankResiduals released{std::move(kept.worker.values),
                         std::move(kept.server.values), clip_};
  exchange_.reset();
  return released;
}

void LowBitAverage::save_bits(State& state, int bits) {
  if (bits != 0) state.common.put_integer(kBits, bits);
}

int LowBitAverage::saved_bits(const StateDict& state, const WarmupBits& own,
                              bool begins) {
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
         state.has_scalar("frozen_at") && saved_count(state, "frozen_at") == 0;
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
    notes.emplace_back(kDropped);
  else if (model_.compresses())
    exchange().residuals.take(std::move(residuals->worker),
                              std::move(residuals->server));
  else
    restored_.restore(*std::move(residuals));
}

}  // namespace thinwire::optim
