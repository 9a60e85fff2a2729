// SPDX-License-Identifier: Apache-2.0
#include "config/checks.h"
#include "config/fields.h"
#include "config/sections.h"

namespace thinwire::config {

namespace {

void write_zero(const Writer& file, const ZeroConfig& zero) {
  const Writer section = file.section("zero_optimization");
  zero_fields(section, zero);
  if (zero.allgather_bucket_size != ZeroConfig{}.allgather_bucket_size)
    section.field("allgather_bucket_size", zero.allgather_bucket_size);
  const Writer offload = section.section("offload_optimizer");
  offload.choice("device", zero.offload_optimizer,
                 Choices<OffloadDevice>(kDevices));
}

// Writes keys that earlier versions lack, but only if they have an effect. Thus
// loading an earlier checkpoint reports no change.
void write_newer(const Writer& file, const Config& config) {
  if (config.prescale_gradients) file.field("prescale_gradients", true);
  if (config.gradient_predivide_factor != 1)
    file.field("gradient_predivide_factor", config.gradient_predivide_factor);
  if (config.wall_clock_breakdown) file.field("wall_clock_breakdown", true);
  if (config.memory_breakdown) file.field("memory_breakdown", true);
}

}  // namespace

// References to open sections stay valid, because `own` is separate from the
// file and each section is complete before the next begins.
std::string Config::to_json() const {
  check_without_ranks(*this);
  JsonValue tree = JsonValue::object();
  JsonValue own_tree = JsonValue::object();
  const Writer file(tree);
  const Writer own(own_tree);

  general_fields(file, *this);
  write_newer(file, *this);
  if (steps_per_print > 0) file.field("steps_per_print", steps_per_print);
  if (communication_dtype.has_value())
    file.choice("communication_data_type", *communication_dtype,
                Choices<DType>(kDtypes));
  own_fields(own, *this);
  if (checkpoint != CheckpointConfig{}) {
    const Writer section = own.section("checkpoint");
    checkpoint_fields(section, checkpoint);
  }
  if (telemetry != TelemetryConfig{}) {
    const Writer section = own.section("telemetry");
    telemetry_fields(section, telemetry);
  }
  if (outer != outer::OuterOptions{}) {
    const Writer section = own.section("outer");
    outer_fields(section, outer);
  }
  write_optimizer(file, own, *this);
  write_precision(file, own, *this);
  write_zero(file, zero);
  write_schedule(file, own, *this);
  tree["thinwire"] = std::move(own_tree);
  for (const auto& [name, text] : other_objects) tree[name] = read_json(text);
  return write_json(tree) + "\n";
}

std::string Config::describe() const {
  Config common = *this;
  std::visit([](auto& options) { options.groups.clear(); }, common.optimizer);
  common.comm.num_threads = 0;
  common.other_objects.clear();
  return common.to_json();
}

}  // namespace thinwire::config
