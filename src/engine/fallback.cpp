// SPDX-License-Identifier: Apache-2.0
#include "engine/fallback.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "thinwire/core/log.h"

namespace thinwire::engine {

using config::Fallback;

namespace {

template <class Value>
double median(const std::deque<FallbackWatch::StepSeconds>& steps,
              Value&& value) {
  std::vector<double> values;
  for (const FallbackWatch::StepSeconds& step : steps)
    values.push_back(value(step));
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle]
                                : (values[middle - 1] + values[middle]) / 2;
}

double whole(const FallbackWatch::StepSeconds& step) { return step.whole; }

void keep(std::deque<FallbackWatch::StepSeconds>& steps,
          const FallbackWatch::StepSeconds& next) {
  steps.push_back(next);
  if (steps.size() > FallbackWatch::kSteps) steps.pop_front();
}

std::string times(const FallbackWatch::Verdict& verdict, const char* how) {
  return fmt::format(
      "{:.3g} ms {}, against {:.3g} ms with exact averages{}",
      verdict.compressed * 1e3, how, verdict.exact * 1e3,
      verdict.compressed < verdict.exact
          ? fmt::format(", and a gain below {:.0f} % does not count",
                        (1 - FallbackWatch::kPaysBelow) * 100)
          : "");
}

}  // namespace

std::optional<FallbackWatch::Verdict> FallbackWatch::add(
    optim::Phase phase, const StepSeconds& seconds) {
  if (phase == optim::Phase::kExact) {
    keep(exact_, seconds);
    return std::nullopt;
  }
  if (exact_median_ <= 0) return std::nullopt;
  keep(compressed_, seconds);
  if (compressed_.size() < kSteps) return std::nullopt;
  const Verdict verdict{exact_median_, median(compressed_, whole)};
  exact_median_ = 0;  // there is only one verdict
  return verdict;
}

bool FallbackWatch::ends_exact_stage(comm::Communicator& comm,
                                     const optim::FreezeRequest& request) {
  if (what_ == Fallback::kOff || exact_.size() < kLeastSteps) return true;
  const double outside =
      median(exact_, [](const StepSeconds& s) { return s.whole - s.step; });
  const std::array<double, 2> own{median(exact_, whole),
                                  outside + request.time_exchange()};
  std::vector<double> all(own.size() * static_cast<std::size_t>(comm.size()));
  comm.all_gather(std::span(own), all);
  Verdict verdict;
  for (std::size_t i = 0; i < all.size(); i += own.size()) {
    verdict.exact = std::max(verdict.exact, all[i]);
    verdict.compressed = std::max(verdict.compressed, all[i + 1]);
  }
  const bool holds = what_ == Fallback::kHold && !verdict.pays();
  if (!holds) exact_median_ = verdict.exact;
  if (!verdict.pays() && comm.rank() == 0)
    log(LogLevel::kWarning,
        fmt::format("compressed steps will not pay here: {}; {}",
                    times(verdict, "expected"),
                    holds ? fmt::format("fallback = hold: step {} is not the "
                                        "last exact one",
                                        request.step)
                          : "\"thinwire\": {\"fallback\": \"hold\"} in the "
                            "configuration would postpone them"));
  return !holds;
}

std::string FallbackWatch::text_after(const Verdict& verdict) {
  return fmt::format(
      "compressed steps do not pay here: {}; thinwire plan compares the ways "
      "to average",
      times(verdict, fmt::format("in the last {} steps", kSteps).c_str()));
}

void FallbackWatch::forget() {
  exact_.clear();
  compressed_.clear();
  exact_median_ = 0;
}

}  // namespace thinwire::engine
