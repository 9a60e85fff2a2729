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

// Largest size of a file, which bounds the time to read it. No configuration
// needs more.
constexpr std::size_t kMostBytes = std::size_t{1} << 20;

void read_general(const Reader& file, Config& config) {
  general_fields(file, config);
  file.field("steps_per_print", config.steps_per_print, kAtLeastOne);
  file.field("prescale_gradients", config.prescale_gradients);
  file.field("gradient_predivide_factor", config.gradient_predivide_factor,
             kPositive);
  file.field("wall_clock_breakdown", config.wall_clock_breakdown);
  file.field("memory_breakdown", config.memory_breakdown);
  if (file.has("communication_data_type")) {
    DType dtype{};
    file.choice("communication_data_type", dtype, Choices<DType>(kDtypes));
    config.communication_dtype = dtype;
  }
}

void read_zero(const JsonValue& tree, const Reader& file, ZeroConfig& zero) {
  const JsonValue* value = find_member(tree, "zero_optimization");
  if (value != nullptr && value->is_boolean()) {
    zero.stage = value->get<bool>() ? 1 : 0;
    return;
  }
  if (value != nullptr && !value->is_object())
    file.reject("zero_optimization", "an object, true or false");
  Reader section = file.section("zero_optimization");
  const JsonValue* stage =
      value == nullptr ? nullptr : find_member(*value, "stage");
  if (stage != nullptr && *stage == 3)
    section.reject("stage",
                   "an integer in [0, 2] (Thinwire has no ZeRO stage 3)");
  section.field("stage", zero.stage, kStages);
  if (zero.stage == 0) section.be_lenient();
  zero_fields(section, zero);
  section.field("allgather_bucket_size", zero.allgather_bucket_size,
                kNotNegative);
  bool cpu_offload = false;
  section.field("cpu_offload", cpu_offload);
  if (zero.stage != 0 && section.has("cpu_offload") &&
      section.has("offload_optimizer"))
    section.exclude("cpu_offload", "left out if offload_optimizer is given");
  if (cpu_offload) zero.offload_optimizer = OffloadDevice::kCpu;
  const Reader offload = section.section("offload_optimizer");
  offload.choice("device", zero.offload_optimizer,
                 Choices<OffloadDevice>(kDevices));
}

// Reads overlap_comm, DeepSpeed's name of thinwire.overlap. The key belongs to
// ZeRO.
void read_overlap(const Reader& file, const Reader& own, Config& config) {
  if (config.zero.stage == 0) return;
  const Reader section = file.section("zero_optimization");
  bool overlap = config.comm.overlap;
  section.field("overlap_comm", overlap);
  if (own.has("overlap") && overlap != config.comm.overlap)
    section.exclude("overlap_comm", "what thinwire.overlap says");
  config.comm.overlap = overlap;
}

// Notes keys that determine where a division happens but do not change the
// mean.
void note_divisions(std::vector<KeyNote>& notes, const Config& config) {
  constexpr std::string_view kKeys[] = {"prescale_gradients",
                                        "gradient_predivide_factor"};
  const bool zero = config.zero.stage > 0;
  const bool rounds = config.semantics == Semantics::kDeepSpeed &&
                      (zero || config.precision.dtype == DType::kFloat16);
  for (const std::string_view key : kKeys) {
    if (!rounds)
      note_unused(notes, key,
                  "sums are formed in fp32 and divided once, so no partial sum "
                  "overflows");
    else if (zero && config.zero.reduce_scatter)
      note_unused(notes, key,
                  "with reduce_scatter every rank divides before the sum");
  }
  if (config.prescale_gradients)
    note_unused(notes, kKeys[1], "prescale_gradients divides by all of it");
}

// Returns whether the file guarantees that gradients are stored in 16 bits when
// they are sent. Without this guarantee a gradient may be an fp32 sum.
bool sends_16_bits(const Config& config) {
  if (config.precision.dtype == DType::kFloat32) return false;
  const bool is_one_backward =
      config.managed_gradient_accumulation &&
      config.gradient_accumulation_steps.value_or(1) == 1 &&
      (config.gradient_accumulation_steps || !config.train_batch_size ||
       !config.train_micro_batch_size_per_gpu);
  return is_one_backward || config.zero.stage == 2 ||
         config.accumulation_dtype != DType::kFloat32;
}

// Notes keys that have an effect only in ZeRO with `deepspeed` semantics.
void note_of_reference(std::vector<KeyNote>& notes, const Config& config) {
  if (config.semantics == Semantics::kDeepSpeed && config.zero.stage > 0)
    return;
  note_unused(notes, "zero_optimization.reduce_scatter",
              "gradients are reduce-scattered in any case");
  note_unused(notes, "zero_optimization.round_robin_gradients",
              "every bucket loads all ranks alike");
  if (sends_16_bits(config))
    note_unused(notes, "communication_data_type",
                "16-bit gradients travel as they are, are added in fp32 and "
                "rounded once; the key is for fp32 sums of several backwards");
}

// Notes keys that other keys make ineffective. Requires that no key is
// rejected.
void note_without_effect(std::vector<KeyNote>& notes, const Config& config) {
  note_divisions(notes, config);
  note_of_reference(notes, config);
  if (config.zero.offload_optimizer == OffloadDevice::kNone ||
      config.semantics == Semantics::kDeepSpeed)
    return;
  for (const std::string_view key :
       {"zero_optimization.offload_optimizer.device",
        "zero_optimization.cpu_offload"})
    note_unused(notes, key,
                "masters and states are in host memory and are updated there "
                "with and without it");
}

// Notes absent keys whose default differs from DeepSpeed's.
void note_absent(const JsonValue& tree, std::vector<KeyNote>& notes) {
  if (!tree.contains("gradient_clipping"))
    notes.push_back({"gradient_clipping", KeyNote::Kind::kAbsent,
                     "it is 0, and gradients are not clipped; DeepSpeed's "
                     "default is 1.0 since version 0.19.3"});
}

// Logs the notes that the caller would not see otherwise.
void log_notes(const std::vector<KeyNote>& notes) {
  for (const KeyNote& note : notes)
    if (note.kind != KeyNote::Kind::kSupported)
      log(LogLevel::kInfo, "configuration: " + describe(note));
}

// Reads the keys that check_keys() has kept. Does not call
// check_without_ranks().
Config read(const JsonValue& tree, std::vector<KeyNote>& notes) {
  const Reader file(&tree, "");
  Config config;
  read_general(file, config);
  const Reader own = file.section("thinwire");
  own_fields(own, config);
  checkpoint_fields(own.section("checkpoint"), config.checkpoint);
  telemetry_fields(own.section("telemetry"), config.telemetry);
  outer_fields(own.section("outer"), config.outer);
  read_optimizer(file, config);
  read_precision(file, config, notes);
  read_schedule(file, config);
  read_zero(tree, file, config.zero);
  read_overlap(file, own, config);
  if (config.zero.stage == 0) note_unused(notes, "zero_optimization.", kNoZero);
  return config;
}

// Returns the path of the key that an error names. The path is the first word,
// or the text in parentheses after a field of Config.
std::string key_in(const std::string& error,
                   const std::vector<KeyNote>& notes) {
  const std::size_t end = error.find(' ');
  std::string key = error.substr(0, end);
  if (end != std::string::npos && error.compare(end, 2, " (") == 0)
    key = error.substr(end + 2, error.find(')') - end - 2);
  constexpr std::string_view kOldName = "zero_optimization.cpu_offload";
  if (key == "zero_optimization.offload_optimizer.device" &&
      std::ranges::find(notes, kOldName, &KeyNote::path) != notes.end())
    return std::string(kOldName);
  return is_known_key(key) ? key : "";
}

bool has_rejected(const std::vector<KeyNote>& notes) {
  return std::ranges::find(notes, KeyNote::Kind::kRejected, &KeyNote::kind) !=
         notes.end();
}

// Turns the note of the key that an error names into a rejection, unless it
// already is one.
void note_rejected(std::vector<KeyNote>& notes, const std::string& key,
                   const std::string& error) {
  const auto found = std::ranges::find(notes, key, &KeyNote::path);
  if (key.empty() || found == notes.end()) {
    notes.push_back({key, KeyNote::Kind::kRejected, error});
  } else if (found->kind != KeyNote::Kind::kRejected) {
    found->kind = KeyNote::Kind::kRejected;
    found->note = error;
  }
}

// Removes a key. If the key is missing, removes its section at the top level.
bool remove(JsonValue& tree, const std::string& key) {
  const std::string section = key.substr(0, key.find('.'));
  JsonValue* object = &tree;
  std::string rest = key;
  while (true) {
    const std::size_t dot = rest.find('.');
    const std::string name = rest.substr(0, dot);
    JsonValue* const found = find_member(*object, name);
    if (found == nullptr) return tree.erase(section) > 0;
    if (dot == std::string::npos) return object->erase(name) > 0;
    object = found;
    rest.erase(0, dot + 1);
  }
}

// Reads a tree. If a value is rejected, notes and removes its key and reads the
// rest again. After a rejection, conflicts are not noted, because removing a
// key may have caused them.
Config read_rest(JsonValue& tree, std::vector<KeyNote>& notes) {
  while (true) {
    std::string key;
    try {
      return read(tree, notes);
    } catch (const Conflict& error) {
      key = key_in(error.what(), notes);
      if (!has_rejected(notes)) note_rejected(notes, key, error.what());
    } catch (const Error& error) {
      key = key_in(error.what(), notes);
      note_rejected(notes, key, error.what());
    }
    if (!remove(tree, key)) return {};
  }
}

// Checks the combinations of values, for any number of ranks if `ranks` is
// unset.
void validate(Config config, std::optional<int> ranks) {
  if (!ranks && config.train_batch_size) {
    const std::int64_t micro =
        config.train_micro_batch_size_per_gpu.value_or(1);
    const std::int64_t steps = config.gradient_accumulation_steps.value_or(1);
    const std::int64_t batch = *config.train_batch_size;
    require(
        batch % micro == 0 && batch / micro % steps == 0, "train_batch_size",
        fmt::format("a multiple of {} samples per backward and {} backwards",
                    micro, steps),
        batch);
    config.train_batch_size.reset();
  }
  config.validate(ranks.value_or(std::max(1, config.comm.ranks_per_host)));
}

// Returns body(text of the file). Errors name the file.
template <class Body>
auto with_file(const std::string& path, Body&& body) {
  std::ifstream file(path, std::ios::binary);
  // Reads one byte more than from_json() accepts, because a device may be
  // endless.
  std::string text(kMostBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (!file.is_open() || file.bad())
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("cannot read the configuration '{}'", path));
  try {
    if (text.empty())
      throw Error(ErrorCode::kInvalidArgument,
                  "a configuration must be a JSON object, got an empty file");
    require(text.size() <= kMostBytes, "a configuration",
            fmt::format("at most {} bytes", kMostBytes), "more");
    return body(text);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", path, error.what()));
  }
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
  const JsonValue tree = check_keys(read_json(text), autos, taken, met);
  Config config = read(tree, met);
  for (const std::string& name : taken)
    if (const JsonValue* object = find_member(tree, name))
      config.other_objects[name] = write_json(*object);
  check_without_ranks(config);
  note_without_effect(met, config);
  note_absent(tree, met);
  if (notes != nullptr)
    notes->insert(notes->end(), met.begin(), met.end());
  else
    log_notes(met);
  return config;
}

Config Config::from_file(const std::string& path, std::vector<KeyNote>* notes,
                         const AutoValues& autos,
                         const std::vector<std::string>& taken) {
  return with_file(path, [&](const std::string& text) {
    return from_json(text, notes, autos, taken);
  });
}

std::vector<KeyNote> check_file(const std::string& path,
                                std::optional<int> ranks,
                                const std::vector<std::string>& taken) {
  // Values that a program could pass.
  constexpr AutoValues kAutos{
      .total_num_steps = 1000, .warmup_num_steps = 1, .learning_rate = 1e-3};
  return with_file(path, [&](const std::string& text) {
    std::vector<KeyNote> notes;
    JsonValue tree = check_keys(read_json(text), kAutos, taken, notes, true);
    note_absent(tree, notes);
    const Config config = read_rest(tree, notes);
    if (has_rejected(notes)) return notes;
    note_without_effect(notes, config);
    try {
      validate(config, ranks);
    } catch (const Error& error) {
      note_rejected(notes, key_in(error.what(), notes), error.what());
    }
    return notes;
  });
}

}  // namespace thinwire::config
