// SPDX-License-Identifier: Apache-2.0
#include <iterator>

#include "config/fields.h"
#include "config/sections.h"
#include "config/type_names.h"
#include "thinwire/core/error.h"

namespace thinwire::config {

namespace {

using Types = std::pair<std::string_view, std::size_t>;

// In lower case, as the reader compares; the index is OptimizerConfig's.
constexpr Types kTypes[] = {{"adam", 0},        {"lamb", 1},
                            {"onebitadam", 2},  {"onebitlamb", 3},
                            {"zerooneadam", 4}, {"adamw", 0}};
static_assert(std::size(kTypes) == std::size(kOptimizerTypes));

OptimizerConfig make(std::size_t index) {
  switch (index) {
    case 1:
      return optim::LambOptions{};
    case 2:
      return optim::OnebitAdamOptions{};
    case 3:
      return optim::OnebitLambOptions{};
    case 4:
      return optim::ZeroOneAdamOptions{};
    default:
      return optim::AdamOptions{};
  }
}

void read_decay(const Reader& optimizer, const Reader& params,
                optim::AdamOptions& options) {
  bool is_adam = false;  // "AdamW" and an absent type are not.
  std::size_t index = 0;
  constexpr Types kAdam[] = {{"adam", 1}, {"adamw", 0}};
  optimizer.choice("type", index, Choices<std::size_t>(kAdam));
  is_adam = index == 1;
  params.field("adam_w_mode", options.decoupled_decay);
  if (!is_adam && !options.decoupled_decay)
    params.reject("adam_w_mode", "true with AdamW; L2 decay is type Adam's");
}

template <class Options>
void read_freeze(const Reader& params, const Reader& own, Options& options) {
  bool is_automatic = options.freeze_step == optim::kAutoFreeze;
  own.field("auto_freeze", is_automatic);
  if (is_automatic && params.has("freeze_step"))
    params.reject("freeze_step", "left out where thinwire.auto_freeze is true");
  params.field("freeze_step", options.freeze_step, kNotNegative);
  if (is_automatic) options.freeze_step = optim::kAutoFreeze;
}

}  // namespace

void read_optimizer(const Reader& file, Config& config) {
  const Reader section = file.section("optimizer");
  const Reader params = section.section("params");
  const Reader own = file.section("thinwire");
  std::size_t index = 0;
  section.choice("type", index, Choices<std::size_t>(kTypes));
  config.optimizer = make(index);
  std::visit(
      [&]<class Options>(Options& options) {
        optimizer_fields(params, own, options);
        if constexpr (requires { options.decoupled_decay; })
          read_decay(section, params, options);
        if constexpr (requires { options.freeze_step; })
          read_freeze(params, own, options);
      },
      config.optimizer);
}

void write_optimizer(const Writer& file, const Writer& own,
                     const Config& config) {
  const Writer section = file.section("optimizer");
  section.field("type", kOptimizerTypes[config.optimizer.index()]);
  const Writer params = section.section("params");
  std::visit(
      [&]<class Options>(const Options& options) {
        if (!options.groups.empty())
          throw Error(ErrorCode::kInvalidArgument,
                      "optimizer.groups must be empty to be written: a file "
                      "knows no groups of parameters");
        optimizer_fields(params, own, options);
        if constexpr (requires { options.decoupled_decay; })
          params.field("adam_w_mode", options.decoupled_decay);
        if constexpr (requires { options.freeze_step; }) {
          const bool is_automatic = options.freeze_step == optim::kAutoFreeze;
          own.field("auto_freeze", is_automatic);
          if (!is_automatic) params.field("freeze_step", options.freeze_step);
        }
      },
      config.optimizer);
}

}  // namespace thinwire::config
