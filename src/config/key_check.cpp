// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "config/archive.h"
#include "config/keys.h"
#include "config/sections.h"
#include "core/edit_distance.h"
#include "core/require.h"

namespace thinwire::config {

namespace {

std::string joined(std::string_view section, std::string_view name) {
  return section.empty() ? std::string(name)
                         : fmt::format("{}.{}", section, name);
}

bool is_auto(const JsonValue* value) {
  return value != nullptr && *value == "auto";
}

// Returns a text in lower case, or an empty text if the value is not a text.
std::string lower_text(const JsonValue& value) {
  return value.is_string() ? lower(value.get_ref<const std::string&>()) : "";
}

const KeyRule* find_rule(std::string_view path) {
  const auto rules = key_rules();
  const auto found = std::find_if(rules.begin(), rules.end(), [&](auto& rule) {
    return rule.path == path;
  });
  return found == rules.end() ? nullptr : &*found;
}

bool is_section(std::string_view path) {
  const std::string prefix = fmt::format("{}.", path);
  const auto rules = key_rules();
  return std::any_of(rules.begin(), rules.end(), [&](const KeyRule& rule) {
    return rule.path.starts_with(prefix);
  });
}

// Returns the names of members that an object at `section` may contain.
std::vector<std::string_view> names_in(std::string_view section,
                                       const std::vector<std::string>& taken) {
  std::vector<std::string_view> names;
  if (section.empty()) names.assign(taken.begin(), taken.end());
  for (const KeyRule& rule : key_rules()) {
    std::string_view rest = rule.path;
    if (!section.empty()) {
      if (!rest.starts_with(section) || rest.size() == section.size() ||
          rest[section.size()] != '.')
        continue;
      rest.remove_prefix(section.size() + 1);
    }
    rest = rest.substr(0, rest.find('.'));
    if (names.empty() || names.back() != rest) names.push_back(rest);
  }
  return names;
}

// Returns the key that corresponds to a name of other libraries.
std::string_view same_meaning(std::string_view name) {
  constexpr std::pair<std::string_view, std::string_view> kMeanings[] = {
      {"clip_grad", "gradient_clipping"},
      {"clip_grad_norm", "gradient_clipping"},
      {"clip_norm", "gradient_clipping"},
      {"grad_clip", "gradient_clipping"},
      {"gradient_clip", "gradient_clipping"},
      {"gradient_clip_val", "gradient_clipping"},
      {"max_grad_norm", "gradient_clipping"},
      {"accumulate_grad_batches", "gradient_accumulation_steps"},
      {"accumulation_steps", "gradient_accumulation_steps"},
      {"grad_accumulation_steps", "gradient_accumulation_steps"},
      {"batch_size", "train_batch_size"},
      {"micro_batch_size", "train_micro_batch_size_per_gpu"},
      {"per_device_train_batch_size", "train_micro_batch_size_per_gpu"},
      {"learning_rate", "optimizer.params.lr"},
      {"zero_stage", "zero_optimization.stage"}};
  for (const auto& [other, key] : kMeanings)
    if (other == name) return key;
  return {};
}

// Returns the path of another object's key with this name, because the key may
// be in the wrong object.
std::string_view elsewhere(std::string_view name) {
  for (const KeyRule& rule : key_rules())
    if (rule.path.size() > name.size() && rule.path.ends_with(name) &&
        rule.path[rule.path.size() - name.size() - 1] == '.')
      return rule.path;
  return {};
}

[[noreturn]] void reject_unknown(std::string_view section,
                                 std::string_view name,
                                 const std::vector<std::string>& taken) {
  constexpr std::size_t kLongest =
      80;  // Longest name that may be a typing error.
  if (name.empty() || name.size() > kLongest)
    reject(fmt::format("unknown key '{}...'",
                       joined(section, name.substr(0, kLongest))));
  std::string_view meant = same_meaning(name);
  if (meant.empty()) meant = elsewhere(name);
  if (meant.empty()) meant = nearest_name(name, names_in(section, taken));
  reject(fmt::format(
      "unknown key '{}'{}", joined(section, name),
      meant.empty() ? "" : fmt::format("; did you mean '{}'?", meant)));
}

// The "type" of a section: its canonical name, or an error. Both are empty if
// there is no type.
struct SectionType {
  std::string_view name;
  std::string error;
};

template <std::size_t N>
SectionType type_in(const JsonValue& file, std::string_view section,
                    const NamedType (&types)[N]) {
  const JsonValue* object = find_member(file, section);
  const JsonValue* type =
      object == nullptr ? nullptr : find_member(*object, "type");
  if (type == nullptr || type->is_null() || is_auto(type)) return {};
  const std::string given = lower_text(*type);
  std::vector<std::string_view> names;
  for (const auto& [known, index] : types) {
    if (lower(known) == given) return {known, ""};
    names.push_back(known);
  }
  return {"", fmt::format("{}.type must be one of {}, got {}", section,
                          fmt::join(names, ", "), brief_json(*type))};
}

bool is_disabled(const JsonValue& value) {
  if (value.is_boolean()) return value == false;
  const JsonValue* enabled = find_member(value, "enabled");
  return value.is_object() && (enabled == nullptr || *enabled == false);
}

bool is_harmless(const KeyRule& rule, const JsonValue& value) {
  if (rule.harmless.empty()) return false;
  if (rule.harmless == kDisabled) return is_disabled(value);
  const JsonValue accepted = read_json(rule.harmless);
  if (accepted.is_number()) return value == accepted;
  return lower(brief_json(value)) == rule.harmless;
}

std::string accepted_value(const KeyRule& rule) {
  if (rule.harmless.empty()) return "";
  return fmt::format(" (only {} is accepted)", rule.harmless);
}

class Checker {
 public:
  Checker(const JsonValue& file, const std::vector<std::string>& taken,
          bool notes_rejected, std::vector<KeyNote>& notes)
      : optimizer_(type_in(file, "optimizer", kOptimizerTypes)),
        scheduler_(type_in(file, "scheduler", kSchedulerTypes)),
        file_(file),
        taken_(taken),
        notes_rejected_(notes_rejected),
        notes_(notes) {
    if (optimizer_.name.empty()) optimizer_.name = kAdamW;
  }

  JsonValue check(const std::string& section, const JsonValue& object) {
    JsonValue kept = JsonValue::object();
    for (const auto& [name, value] : object.items()) {
      try {
        check_member(section, object, name, value, kept);
      } catch (const Error& error) {
        if (!notes_rejected_) throw;
        const std::string path = joined(section, name);
        if (!notes_.empty() && notes_.back().path == path) notes_.pop_back();
        note(path, KeyNote::Kind::kRejected, error.what(), value);
      }
    }
    return kept;
  }

 private:
  void check_member(const std::string& section, const JsonValue& object,
                    const std::string& name, const JsonValue& value,
                    JsonValue& kept) {
    const std::string path = joined(section, name);
    for (const SectionType* type : {&optimizer_, &scheduler_})
      if (!type->error.empty() && type->error.starts_with(path + " "))
        reject(type->error);
    const bool others = section.empty() && is_taken(name);
    const bool nested = is_section(path);
    const KeyRule* rule = find_rule(path);
    if (rule == nullptr && !nested && !others)
      reject_unknown(section, name, taken_);
    if (is_absent(value)) {
      note(path, KeyNote::Kind::kIgnored, "as if absent", value);
    } else if (nested && value.is_object()) {
      kept[name] = check(path, value);
    } else if (others && value.is_object()) {
      note(path, KeyNote::Kind::kSupported, "", value);
      kept[name] = value;
    } else if (rule == nullptr) {
      reject(
          fmt::format("{} must be an object, got {}", path, brief_json(value)));
    } else if (keeps(*rule, value)) {
      kept[name] = value;
    } else {
      bool either = false;
      if (rule->is_switch && why_off(path).empty())
        Reader(&object, section).field(name, either);
    }
  }

  [[nodiscard]] bool is_taken(std::string_view name) const {
    return std::find(taken_.begin(), taken_.end(), name) != taken_.end();
  }

  static bool is_absent(const JsonValue& value) {
    return value.is_null() || is_auto(&value);
  }

  // Returns why a key has no effect because its section is off, or nothing.
  [[nodiscard]] std::string_view why_off(std::string_view path) const {
    const std::string_view name = path.substr(0, path.find('.'));
    const JsonValue* section = find_member(file_, name);
    if (section == nullptr || path == name) return {};
    const bool is_zero = name == "zero_optimization";
    if (!is_zero && name != "fp16" && name != "bf16") return {};
    const JsonValue* on = find_member(*section, is_zero ? "stage" : "enabled");
    const bool is_off =
        on == nullptr || is_absent(*on) || (is_zero ? *on == 0 : *on == false);
    if (!is_off) return {};
    return is_zero ? kNoZero : kNotEnabled;
  }

  bool keeps(const KeyRule& rule, const JsonValue& value) {
    require_type(rule);
    if (rule.status == KeyStatus::kRejected) {
      const std::string_view off = why_off(rule.path);
      if (!off.empty()) {
        note(rule.path, KeyNote::Kind::kIgnored, off, value);
        return false;
      }
      if (!is_harmless(rule, value))
        reject(fmt::format("{} = {} is rejected: {}{}", rule.path,
                           brief_json(value), rule.text, accepted_value(rule)));
      note(rule.path, KeyNote::Kind::kIgnored, "what Thinwire does anyway",
           value);
      return false;
    }
    const bool supported = rule.status == KeyStatus::kSupported;
    note(rule.path,
         supported ? KeyNote::Kind::kSupported : KeyNote::Kind::kIgnored,
         supported ? "" : rule.text, value);
    return supported;
  }

  void require_type(const KeyRule& rule) const {
    const auto& [type, error] =
        rule.path.starts_with("scheduler.") ? scheduler_ : optimizer_;
    if (rule.only.empty() || !error.empty()) return;
    std::string_view rest = rule.only;
    while (!rest.empty()) {
      const std::size_t end = rest.find(", ");
      if (rest.substr(0, end) == type) return;
      if (end == std::string_view::npos) break;
      rest.remove_prefix(end + 2);
    }
    reject(fmt::format("{} is of {}, not of {}", rule.path, rule.only,
                       type.empty() ? "no scheduler type" : type));
  }

  void note(std::string_view path, KeyNote::Kind kind, std::string_view text,
            const JsonValue& value) {
    notes_.push_back(
        {std::string(path), kind, std::string(text), compact_json(value)});
  }

  SectionType optimizer_;
  SectionType scheduler_;
  const JsonValue& file_;
  const std::vector<std::string>& taken_;
  bool notes_rejected_;
  std::vector<KeyNote>& notes_;
};

// "bfloat16" is DeepSpeed's old name of "bf16".
JsonValue with_new_names(const JsonValue& file) {
  if (file.contains("bf16") && file.contains("bfloat16"))
    reject("bf16 and bfloat16 are two names of one section; give one");
  JsonValue renamed = JsonValue::object();
  for (const auto& [name, value] : file.items())
    renamed[name == "bfloat16" ? "bf16" : name] = value;
  return renamed;
}

JsonValue* member(JsonValue* object, std::string_view name) {
  return object == nullptr ? nullptr : find_member(*object, name);
}

// Returns a scheduler's "auto" parameter, which only the program can resolve.
std::int64_t steps_of(std::string_view name,
                      std::optional<std::int64_t> steps) {
  if (!steps)
    reject(
        fmt::format("scheduler.params.{} must be a number, got \"auto\", and "
                    "the program gave no value for it",
                    name));
  return *steps;
}

// A file in which the program's values replace "auto", and the paths of these
// values.
struct Resolved {
  JsonValue file;
  std::vector<std::string> paths;
};

Resolved with_auto_values(JsonValue file, const AutoValues& autos) {
  std::vector<std::string> paths;
  const auto put = [&](std::string path, JsonValue* to, JsonValue value) {
    *to = std::move(value);
    paths.push_back(std::move(path));
  };
  JsonValue* rate = member(member(member(&file, "optimizer"), "params"), "lr");
  if (is_auto(rate) && autos.learning_rate)
    put("optimizer.params.lr", rate, short_number(*autos.learning_rate));

  JsonValue* scheduler = member(&file, "scheduler");
  JsonValue* params = member(scheduler, "params");
  JsonValue* total = member(params, "total_num_steps");
  if (is_auto(total))
    put("scheduler.params.total_num_steps", total,
        steps_of("total_num_steps", autos.total_num_steps));
  JsonValue* warmup = member(params, "warmup_num_steps");
  if (is_auto(warmup)) {
    const auto steps = steps_of("warmup_num_steps", autos.warmup_num_steps);
    put("scheduler.params.warmup_num_steps", warmup,
        steps == 0 ? std::int64_t{1} : steps);
  }
  // If `warmup_max_lr` is absent, WarmupLR takes the optimizer's rate, and
  // WarmupDecayLR takes 0.001.
  JsonValue* highest = member(params, "warmup_max_lr");
  const JsonValue* type = member(scheduler, "type");
  if (is_auto(highest) && type != nullptr &&
      lower_text(*type) == "warmupdecaylr") {
    if (autos.learning_rate)
      put("scheduler.params.warmup_max_lr", highest,
          short_number(*autos.learning_rate));
    else if (rate != nullptr && rate->is_number())
      *highest = *rate;
  }
  return {std::move(file), std::move(paths)};
}

}  // namespace

bool is_known_key(std::string_view path) {
  return find_rule(path) != nullptr || is_section(path);
}

JsonValue check_keys(const JsonValue& file, const AutoValues& autos,
                     const std::vector<std::string>& taken,
                     std::vector<KeyNote>& notes, bool notes_rejected) {
  for (const std::string& name : taken)
    require(!is_known_key(name), "taken", "names that are no keys",
            fmt::format("'{}'", name));
  if (!file.is_object())
    reject(fmt::format("a configuration must be a JSON object, got {}",
                       brief_json(file)));
  const auto [resolved, paths] = with_auto_values(with_new_names(file), autos);
  JsonValue kept =
      Checker(resolved, taken, notes_rejected, notes).check("", resolved);
  for (KeyNote& note : notes) {
    if (note.kind != KeyNote::Kind::kSupported ||
        std::find(paths.begin(), paths.end(), note.path) == paths.end())
      continue;
    note.note = "auto: from the program";
    note.value = "\"auto\"";
  }
  return kept;
}

void note_unused(std::vector<KeyNote>& notes, std::string_view path,
                 std::string_view why) {
  const auto is_switch = [&](const KeyNote& note) {
    return note.path.starts_with(path) &&
           (note.path.ends_with(".enabled") || note.path.ends_with(".stage"));
  };
  const auto found = std::ranges::find_if(notes, is_switch);
  if (found != notes.end() && found->kind == KeyNote::Kind::kRejected) return;
  for (KeyNote& note : notes) {
    if (is_switch(note) || !note.path.starts_with(path) ||
        note.kind != KeyNote::Kind::kSupported)
      continue;
    note.kind = KeyNote::Kind::kIgnored;
    note.note = why;
  }
}

}  // namespace thinwire::config
