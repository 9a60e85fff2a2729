// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "config/checks.h"
#include "config/fields.h"
#include "config/keys.h"
#include "config/sections.h"
#include "core/require.h"
#include "thinwire/core/log.h"

namespace thinwire::config {

namespace {

// Of any length a file could need; a bound on the time to read one.
constexpr std::size_t kMostBytes = std::size_t{1} << 20;

void read_general(const Reader& file, Config& config) {
  config.gradient_clipping = 1;  // DeepSpeed's, where a file does not say.
  general_fields(file, config);
  file.field("steps_per_print", config.steps_per_print, kAtLeastOne);
  if (file.has("communication_data_type")) {
    DType dtype{};
    file.choice("communication_data_type", dtype, Choices<DType>(kDtypes));
    config.communication_dtype = dtype;
  }
}

void read_zero(const Json& tree, const Reader& file, ZeroConfig& zero) {
  const Json* value = tree.find("zero_optimization");
  if (value != nullptr && value->is(Json::Kind::kBoolean)) {
    zero.stage = value->boolean ? 1 : 0;
    return;
  }
  if (value != nullptr && !value->is(Json::Kind::kObject))
    file.reject("zero_optimization", "an object, true or false");
  const Reader section = file.section("zero_optimization");
  zero_fields(section, zero);
  bool cpu_offload = false;
  section.field("cpu_offload", cpu_offload);
  if (section.has("cpu_offload") && section.has("offload_optimizer"))
    section.reject("cpu_offload", "left out where offload_optimizer is given");
  if (cpu_offload) zero.offload_optimizer = OffloadDevice::kCpu;
  const Reader offload = section.section("offload_optimizer");
  offload.choice("device", zero.offload_optimizer,
                 Choices<OffloadDevice>(kDevices));
}

// Keys of which the caller would not learn otherwise.
void log_ignored(const std::vector<KeyNote>& notes) {
  for (const KeyNote& note : notes)
    if (note.kind == KeyNote::Kind::kIgnored)
      log(LogLevel::kInfo, "configuration: " + describe(note));
}

}  // namespace

Config Config::from_json(std::string_view text, std::vector<KeyNote>* notes,
                         const AutoValues& autos,
                         const std::vector<std::string>& taken) {
  if (text.size() > kMostBytes)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("a configuration must be at most {} bytes, got {}",
                            kMostBytes, text.size()));
  std::vector<KeyNote> met;
  const Json tree = check_keys(parse_json(text), autos, taken, met);
  const Reader file(&tree, "");

  Config config;
  read_general(file, config);
  const Reader own = file.section("thinwire");
  own_fields(own, config);
  checkpoint_fields(own.section("checkpoint"), config.checkpoint);
  telemetry_fields(own.section("telemetry"), config.telemetry);
  read_optimizer(file, config);
  read_precision(file, config, met);
  read_schedule(file, config);
  read_zero(tree, file, config.zero);
  if (config.zero.stage == 0)
    note_unused(met, "zero_optimization.", "at stage 0 there is no ZeRO");
  for (const std::string& name : taken)
    if (const Json* object = tree.find(name))
      config.other_objects[name] = write_json(*object);
  check_without_ranks(config);
  if (notes != nullptr)
    notes->insert(notes->end(), met.begin(), met.end());
  else
    log_ignored(met);
  return config;
}

Config Config::from_file(const std::string& path, std::vector<KeyNote>* notes,
                         const AutoValues& autos,
                         const std::vector<std::string>& taken) {
  std::ifstream file(path, std::ios::binary);
  // One byte more than from_json() takes: a device may have no end.
  std::string text(kMostBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (!file.is_open() || file.bad() || text.empty())
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("cannot read the configuration '{}'", path));
  if (text.size() > kMostBytes)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: a configuration must be at most {} bytes, got "
                            "more",
                            path, kMostBytes));
  try {
    return from_json(text, notes, autos, taken);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", path, error.what()));
  }
}

}  // namespace thinwire::config
