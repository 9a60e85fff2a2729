// SPDX-License-Identifier: Apache-2.0
#include "engine/engine_rates.h"

#include <cmath>
#include <limits>
#include <utility>

#include "core/require.h"
#include "thinwire/core/error.h"

namespace thinwire::engine {

namespace {

constexpr const char* kKey = "engine_learning_rates";

bool is_rate(double value) { return std::isfinite(value) && value >= 0; }

}  // namespace

void EngineRates::begin(optim::ParameterGroups& groups) {
  groups_ = &groups;
  for (std::size_t g = 0; g < groups.num_groups(); ++g)
    base_.push_back(groups.learning_rate(g));
  applied_ = base_;
  by_hand_.resize(base_.size());
}

void EngineRates::apply(std::int64_t applied_steps) {
  for (std::size_t g = 0; g < base_.size(); ++g) {
    // The program has set the rate through Engine::zero().
    if (groups_->learning_rate(g) != applied_[g])
      by_hand_[g] = groups_->learning_rate(g);
  }
  std::vector<double> rates;
  for (std::size_t g = 0; g < base_.size(); ++g) {
    rates.push_back(by_hand_[g] ? *by_hand_[g]
                    : own_      ? own_(base_[g], applied_steps)
                                : schedule_.rate(base_[g], applied_steps));
    require(is_rate(rates[g]), "the schedule's learning rate",
            fmt::format("finite and >= 0 after {} steps", applied_steps),
            rates[g]);
  }
  for (std::size_t g = 0; g < base_.size(); ++g)
    groups_->set_learning_rate(g, rates[g]);
  applied_ = rates;
}

void EngineRates::set(std::size_t group, double learning_rate) {
  groups_->set_learning_rate(group, learning_rate);
  by_hand_[group] = applied_[group] = learning_rate;
}

void EngineRates::set(double learning_rate) {
  for (std::size_t g = 0; g < base_.size(); ++g) set(g, learning_rate);
}

void EngineRates::set_schedule(config::LearningRateFunction schedule) {
  own_ = std::move(schedule);
  by_hand_.assign(base_.size(), std::nullopt);
}

void EngineRates::save(StateDict& state) const {
  std::vector<double> rates;
  bool has_any = false;
  for (const std::optional<double>& rate : by_hand_) {
    has_any = has_any || rate.has_value();
    rates.push_back(rate.value_or(std::numeric_limits<double>::quiet_NaN()));
  }
  if (has_any)
    state.put(kKey, ConstView(rates.data(), rates.size(), DType::kFloat64));
}

void EngineRates::load(const StateDict& state) {
  by_hand_.assign(base_.size(), std::nullopt);
  for (std::size_t g = 0; g < base_.size(); ++g)
    applied_[g] = groups_->learning_rate(g);
  if (!state.has_array(kKey)) return;
  const auto rates =
      state.array(kKey, DType::kFloat64, base_.size()).as<double>();
  for (std::size_t g = 0; g < base_.size(); ++g)
    if (!std::isnan(rates[g])) by_hand_[g] = rates[g];
}

void EngineRates::restore(std::vector<std::optional<double>> by_hand) {
  by_hand_ = std::move(by_hand);
  for (std::size_t g = 0; g < base_.size(); ++g)
    groups_->set_learning_rate(g, by_hand_[g].value_or(base_[g]));
  for (std::size_t g = 0; g < base_.size(); ++g)
    applied_[g] = groups_->learning_rate(g);
}

void EngineRates::require_loadable(const StateDict& state) const {
  if (!state.has_array(kKey)) return;
  for (const double rate :
       state.array(kKey, DType::kFloat64, base_.size()).as<double>())
    if (!std::isnan(rate) && !is_rate(rate))
      throw Error(
          ErrorCode::kCorruptCheckpoint,
          fmt::format("{} must be finite and >= 0, got {}", kKey, rate));
}

}  // namespace thinwire::engine
