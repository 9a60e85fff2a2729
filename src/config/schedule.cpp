// SPDX-License-Identifier: Apache-2.0
#include <type_traits>
#include <variant>

#include "config/fields.h"
#include "config/sections.h"

namespace thinwire::config {

namespace {

void read_cycle(const Reader& params) {
  bool momentum = true;
  params.field("cycle_momentum", momentum);
  if (momentum)
    params.reject("cycle_momentum",
                  "false (betas are fixed here, which the default true would "
                  "change from step to step)");
  for (const std::string_view name : {"cycle_min_lr", "cycle_max_lr"})
    if (!params.has(name)) params.reject(name, "given");
}

}  // namespace

void read_schedule(const Reader& file, Config& config) {
  const Reader section = file.section("scheduler");
  const Reader params = section.section("params");
  const Reader ours = file.section("thinwire").section("schedule");
  if (!section.has("type")) {
    if (section.has("params")) section.reject("type", "given with params");
    shape_fields(ours, std::get<WarmupAndDecay>(config.schedule.shape));
    return;
  }
  if (file.section("thinwire").has("schedule"))
    file.section("thinwire")
        .exclude("schedule", "left out if scheduler is given");
  std::size_t index = 0;
  section.choice("type", index, Choices<std::size_t>(kSchedulerTypes));
  using Shape = decltype(config.schedule.shape);
  const Shape all[] = {WarmupAndDecay{}, WarmupLr{}, WarmupDecayLr{},
                       WarmupCosineLr{}, OneCycle{}, LrRangeTest{}};
  static_assert(std::extent_v<decltype(all)> == std::variant_size_v<Shape>);
  config.schedule.shape = all[index];
  std::visit([&](auto& shape) { shape_fields(params, shape); },
             config.schedule.shape);
  if (std::holds_alternative<OneCycle>(config.schedule.shape))
    read_cycle(params);
}

void write_schedule(const Writer& file, const Writer& own,
                    const Config& config) {
  const auto& shape = config.schedule.shape;
  if (const auto* ours = std::get_if<WarmupAndDecay>(&shape)) {
    const Writer section = own.section("schedule");
    shape_fields(section, *ours);
    return;
  }
  const Writer section = file.section("scheduler");
  section.field("type", kSchedulerTypes[shape.index() - 1].first);
  const Writer params = section.section("params");
  std::visit([&](const auto& s) { shape_fields(params, s); }, shape);
  if (std::holds_alternative<OneCycle>(shape))
    params.field("cycle_momentum", false);
}

}  // namespace thinwire::config
