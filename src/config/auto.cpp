// SPDX-License-Identifier: Apache-2.0
// "auto": the values that a program has for a file.
#include <fmt/format.h>

#include <string>
#include <utility>

#include "config/archive.h"
#include "config/keys.h"
#include "thinwire/core/error.h"

namespace thinwire::config {

namespace {

bool is_auto(const Json* value) {
  return value != nullptr && value->is(Json::Kind::kText) &&
         value->text == "auto";
}

Json* member(Json* object, std::string_view name) {
  if (object == nullptr) return nullptr;
  for (auto& [key, value] : object->members)
    if (key == name) return &value;
  return nullptr;
}

// The "auto" of a scheduler's params, which only the program can resolve.
std::int64_t steps_of(std::string_view name,
                      std::optional<std::int64_t> steps) {
  if (!steps)
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("scheduler.params.{0} must be a number, or \"auto\" where "
                    "the program knows it (AutoValues::{0}), got \"auto\"",
                    name));
  return *steps;
}

}  // namespace

Resolved with_auto_values(Json file, const AutoValues& autos) {
  std::vector<std::string> paths;
  const auto put = [&](std::string path, Json* to, Json value) {
    *to = std::move(value);
    paths.push_back(std::move(path));
  };
  Json* rate = member(member(member(&file, "optimizer"), "params"), "lr");
  if (is_auto(rate) && autos.learning_rate)
    put("optimizer.params.lr", rate, Json::of(*autos.learning_rate));

  Json* scheduler = member(&file, "scheduler");
  Json* params = member(scheduler, "params");
  Json* total = member(params, "total_num_steps");
  if (is_auto(total))
    put("scheduler.params.total_num_steps", total,
        Json::of(steps_of("total_num_steps", autos.total_num_steps)));
  Json* warmup = member(params, "warmup_num_steps");
  if (is_auto(warmup)) {
    const auto steps = steps_of("warmup_num_steps", autos.warmup_num_steps);
    put("scheduler.params.warmup_num_steps", warmup,
        Json::of(steps == 0 ? std::int64_t{1} : steps));
  }
  // Absent it is the optimizer's with WarmupLR, but 0.001 with WarmupDecayLR.
  Json* highest = member(params, "warmup_max_lr");
  const Json* type = member(scheduler, "type");
  if (is_auto(highest) && type != nullptr &&
      lower(type->text) == "warmupdecaylr") {
    if (autos.learning_rate)
      put("scheduler.params.warmup_max_lr", highest,
          Json::of(*autos.learning_rate));
    else if (rate != nullptr && rate->is(Json::Kind::kNumber))
      *highest = *rate;
  }
  return {std::move(file), std::move(paths)};
}

}  // namespace thinwire::config
