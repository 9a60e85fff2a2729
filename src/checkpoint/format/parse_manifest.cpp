// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>
#include <utility>

#include "checkpoint/format/fields.h"
#include "checkpoint/format/manifest.h"
#include "core/json_text.h"
#include "thinwire/core/error.h"

namespace thinwire::checkpoint {

namespace {

// No object has many members. The longest list that is parsed as a whole
// contains a file's hashes. The limit suffices for 16 TiB.
constexpr JsonLimits kManifestLimits{4096, 16, std::size_t{4} << 20};
constexpr std::int64_t kMostRanks = std::int64_t{1} << 24;

// Place of a value in the file, for error messages.
struct Place {
  const std::string& file;
  std::string_view member;

  [[noreturn]] void fail(std::string_view what) const {
    corrupt(file, fmt::format("{} {}", member, what));
  }
  [[noreturn]] void fail(const JsonValue& value, std::string_view what) const {
    corrupt(file, fmt::format("{}: {} {}", member, brief_json(value), what));
  }
};

const JsonValue& part(const Place& at, const JsonValue& object,
                      std::string_view name) {
  const JsonValue* const found = find_member(object, name);
  if (found == nullptr) at.fail(object, fmt::format("has no {}", name));
  return *found;
}

const std::string& text(const Place& at, const JsonValue& value) {
  if (!value.is_string()) at.fail(value, "is not a text");
  return value.get_ref<const std::string&>();
}

const std::string& name(const Place& at, const JsonValue& value) {
  const std::string& found = text(at, value);
  if (const auto problem = problem_of_name(found); !problem.empty())
    at.fail(value, problem);
  return found;
}

std::int64_t integer(const Place& at, const JsonValue& value,
                     std::int64_t least, std::int64_t most) {
  const auto found = integer_in(value);
  if (!found || *found < least || *found > most)
    at.fail(value,
            fmt::format("is not a whole number from {} to {}", least, most));
  return *found;
}

// Counts are limited, because larger ones could overflow when the run
// continues.
std::int64_t count(const Place& at, const JsonValue& value) {
  return integer(at, value, 0, static_cast<std::int64_t>(kMostSize));
}

std::uint64_t size(const Place& at, const JsonValue& value) {
  return static_cast<std::uint64_t>(count(at, value));
}

bool boolean(const Place& at, const JsonValue& value) {
  if (!value.is_boolean()) at.fail(value, "is not true or false");
  return value.get<bool>();
}

const JsonValue& array(const Place& at, const JsonValue& value) {
  if (!value.is_array()) at.fail(value, "is not an array");
  return value;
}

std::pair<std::string, std::string> pair(const Place& at,
                                         const JsonValue& value) {
  const auto& two = array(at, value);
  if (two.size() != 2) at.fail(value, "is not a pair");
  return {name(at, two[0]), name(at, two[1])};
}

const std::string& file_name(const Place& at, const JsonValue& value) {
  const std::string& found = text(at, value);
  if (!is_file_name(found))
    at.fail(value, "is not a file name of [A-Za-z0-9][A-Za-z0-9._-]{0,127}");
  return found;
}

std::string hexadecimal(const Place& at, const JsonValue& value,
                        std::size_t digits) {
  const std::string& found = text(at, value);
  const auto is_digit = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
  };
  if (found.size() != digits ||
      !std::all_of(found.begin(), found.end(), is_digit))
    at.fail(value, fmt::format("is not {} hexadecimal digits", digits));
  return found;
}

TensorType tensor_type(const Place& at, const JsonValue& value) {
  const auto type = tensor_type_from(text(at, value));
  if (!type) at.fail(value, "is not a dtype");
  return *type;
}

// Returns the element of `all` whose text equals `value`.
template <class T, std::size_t N>
T one_of(const Place& at, const JsonValue& value, const std::array<T, N>& all) {
  for (const T one : all)
    if (optim::to_string(one) == text(at, value)) return one;
  at.fail(value, "is not known");
}

SavedParameter parameter(const Place& at, const JsonValue& value) {
  SavedParameter found{name(at, part(at, value, "name"))};
  auto shape = shape_in(part(at, value, "shape"));
  if (!shape || !elements_of(*shape))
    at.fail(value, "has a shape of more than 16 sizes or 2^53 elements");
  found.shape = std::move(*shape);
  found.type = tensor_type(at, part(at, value, "dtype"));
  return found;
}

SavedArray saved_array(const Place& at, const JsonValue& value) {
  using optim::Axis;
  using optim::Sharing;
  SavedArray found{name(at, part(at, value, "name"))};
  found.axis = one_of(at, part(at, value, "axis"),
                      std::array{Axis::kElement, Axis::kRange, Axis::kParameter,
                                 Axis::kGroup, Axis::kFree});
  found.sharing = one_of(at, part(at, value, "sharing"),
                         std::array{Sharing::kSame, Sharing::kSharded,
                                    Sharing::kOwn, Sharing::kMean});
  const TensorType type = tensor_type(at, part(at, value, "dtype"));
  if (!type.other.empty()) at.fail(value, "is not of an array's dtype");
  found.dtype = type.dtype;
  if (const JsonValue* const is_parameters =
          find_member(value, "is_parameters"))
    found.is_parameters = boolean(at, *is_parameters);
  return found;
}

SavedFile saved_file(const Place& at, const JsonValue& value) {
  SavedFile found{file_name(at, part(at, value, "name"))};
  found.bytes = size(at, part(at, value, "bytes"));
  const auto& hashes = array(at, part(at, value, "xxh3"));
  if (hashes.size() != (found.bytes + kChunkBytes - 1) / kChunkBytes)
    at.fail(value, fmt::format("has {} hashes for {} bytes", hashes.size(),
                               found.bytes));
  for (const JsonValue& hash : hashes)
    found.chunk_hashes.push_back(
        std::stoull(hexadecimal(at, hash, 16), nullptr, 16));
  for (const JsonValue& item : array(at, part(at, value, "tensors")))
    found.tensors.push_back(pair(at, item));
  if (const JsonValue* const host = find_member(value, "host"))
    found.host = name(at, *host);
  return found;
}

void weights(Manifest& m, const Place& at, const JsonValue& value) {
  for (const JsonValue& item : array(at, part(at, value, "files")))
    m.weight_files.push_back(file_name(at, item));
  m.steps_behind = count(at, part(at, value, "steps_behind"));
}

void version(Manifest&, const Place& at, const JsonValue& value) {
  const auto& two = array(at, value);
  if (two.size() != 2) at.fail(value, "is not a pair of numbers");
  const std::int64_t major = integer(at, two[0], 0, 1 << 30);
  static_cast<void>(integer(at, two[1], 0, 1 << 30));
  if (major != kManifestMajor)
    at.fail(value, fmt::format("of the format: this version of Thinwire reads "
                               "[{}, ...]",
                               kManifestMajor));
}

void features(Manifest&, const Place& at, const JsonValue& value) {
  for (const JsonValue& feature : array(at, value))
    at.fail(feature, "is a feature that this version of Thinwire lacks");
}

void format(Manifest&, const Place& at, const JsonValue& value) {
  if (text(at, value) != kManifestFormat)
    at.fail(value, fmt::format("is not \"{}\"", kManifestFormat));
}

// Handles a member, or each element of a list of objects or arrays.
using Take = void (*)(Manifest& m, const Place& at, const JsonValue& value);
struct Member {
  std::string_view name;
  Take take;
  Take take_element = nullptr;
  bool is_needed = true;
};

template <std::string Manifest::*field>
void take_text(Manifest& m, const Place& at, const JsonValue& value) {
  m.*field = text(at, value);
}
template <std::string Manifest::*field>
void take_id(Manifest& m, const Place& at, const JsonValue& value) {
  m.*field = hexadecimal(at, value, 32);
}
template <bool Manifest::*field>
void take_boolean(Manifest& m, const Place& at, const JsonValue& value) {
  m.*field = boolean(at, value);
}
template <std::int64_t Manifest::*field>
void take_count(Manifest& m, const Place& at, const JsonValue& value) {
  m.*field = count(at, value);
}
template <int Manifest::*field, int least, int most>
void take_int(Manifest& m, const Place& at, const JsonValue& value) {
  m.*field = static_cast<int>(integer(at, value, least, most));
}
// Checks the type of a list. Its elements have been handled already.
void take_list(Manifest&, const Place& at, const JsonValue& value) {
  if (!array(at, value).empty())
    at.fail(value[0], "is not an object or an array");
}
template <StateDict Manifest::*field>
void take_scalar(Manifest& m, const Place& at, const JsonValue& value) {
  add_scalar(m.*field, value, at.file, at.member);
}
template <std::vector<StateDict> Manifest::*field>
void take_scalars_of_rank(Manifest& m, const Place& at,
                          const JsonValue& value) {
  StateDict& state = (m.*field).emplace_back();
  for (const JsonValue& scalar : array(at, value))
    add_scalar(state, scalar, at.file, at.member);
}

const Member kMembers[] = {
    {"format", format},
    {"version", version},
    {"requires", features},
    {"id", take_id<&Manifest::id>},
    {"run", take_id<&Manifest::run>},
    {"save_index", take_count<&Manifest::save_index>},
    {"step", take_count<&Manifest::step>},
    {"written", take_text<&Manifest::written>},
    {"library", take_text<&Manifest::library>},
    {"durable", take_boolean<&Manifest::durable>, nullptr, false},
    {"finite", take_boolean<&Manifest::finite>, nullptr, false},
    {"world", take_int<&Manifest::world, 1, kMostRanks>},
    {"optimizer", take_text<&Manifest::optimizer>},
    {"semantics", take_text<&Manifest::semantics>},
    {"phase", take_text<&Manifest::phase>},
    {"precision", take_text<&Manifest::precision>},
    {"zero_stage", take_int<&Manifest::zero_stage, 0, 3>},
    {"parameters", take_list,
     [](Manifest& m, const Place& at, const JsonValue& value) {
       m.parameters.push_back(parameter(at, value));
       m.parameters.back().group = size(at, part(at, value, "group"));
     }},
    {"aliases", take_list,
     [](Manifest& m, const Place& at, const JsonValue& value) {
       m.aliases.push_back(pair(at, value));
     }},
    {"others", take_list,
     [](Manifest& m, const Place& at, const JsonValue& value) {
       m.others.push_back(parameter(at, value));
     }},
    {"arrays", take_list,
     [](Manifest& m, const Place& at, const JsonValue& value) {
       m.arrays.push_back(saved_array(at, value));
     }},
    {"files", take_list,
     [](Manifest& m, const Place& at, const JsonValue& value) {
       m.files.push_back(saved_file(at, value));
     }},
    {"scalars", take_list, take_scalar<&Manifest::scalars>},
    {"scalars_of_ranks", take_list,
     take_scalars_of_rank<&Manifest::scalars_of_ranks>},
    {"caller", take_list, take_scalar<&Manifest::caller>, false},
    {"extra", take_list, take_scalar<&Manifest::extra>},
    {"extra_of_ranks", take_list,
     take_scalars_of_rank<&Manifest::extra_of_ranks>},
    {"config", take_text<&Manifest::config>},
    {"weights", weights},
};

template <class Items>
void require_unique(const Items& items, const Place& at) {
  std::unordered_set<std::string_view> names;
  for (const auto& item : items)
    if (!names.insert(item.name).second) at.fail(item.name, "appears twice");
}

// Checks members against each other.
void check(const Manifest& m, const std::string& file) {
  require_unique(m.parameters, {file, "parameters"});
  require_unique(m.others, {file, "others"});
  require_unique(m.arrays, {file, "arrays"});
  require_unique(m.files, {file, "files"});
  const auto world = static_cast<std::size_t>(m.world);
  for (const auto& [member, list] :
       {std::pair("scalars_of_ranks", &m.scalars_of_ranks),
        std::pair("extra_of_ranks", &m.extra_of_ranks)})
    if (!list->empty() && list->size() != world)
      corrupt(file, fmt::format("{} must be of {} ranks, got {}", member, world,
                                list->size()));
  for (const std::string& weight_file : m.weight_files)
    if (std::none_of(m.files.begin(), m.files.end(),
                     [&](const SavedFile& f) { return f.name == weight_file; }))
      corrupt(file,
              fmt::format("weights: {} is not one of the files", weight_file));
}

void require_end(std::string_view text, const std::string& file) {
  const std::size_t end = manifest_end({}).size();
  if (text.size() < end || text.substr(text.size() - end) !=
                               manifest_end(text.substr(0, text.size() - end)))
    corrupt(
        file,
        "it is damaged: manifest_xxh3 is not the hash of the text before it");
}

}  // namespace

SavedFile file_from_json(const JsonValue& value, const std::string& from) {
  return saved_file({from, "files"}, value);
}

Manifest parse_manifest(std::string_view text, const std::string& file) {
  if (text.size() > kMostManifestBytes)
    corrupt(file, fmt::format("it has {} bytes, at most {} are allowed",
                              text.size(), kMostManifestBytes));
  require_end(text, file);
  Manifest manifest;
  std::unordered_set<std::string_view> seen;
  const auto take = [&](const std::string& member, const JsonValue& value,
                        bool is_element) {
    const auto* const known =
        std::find_if(std::begin(kMembers), std::end(kMembers),
                     [&](const Member& m) { return m.name == member; });
    if (known == std::end(kMembers)) return;
    seen.insert(known->name);
    const Place at{file, known->name};
    const Take act = is_element ? known->take_element : known->take;
    if (act == nullptr) at.fail(value, "is not a text or a number");
    act(manifest, at, value);
  };
  try {
    read_json_members(text, kManifestLimits, take);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kCorruptCheckpoint) throw;
    corrupt(file, error.what());
  }
  for (const Member& member : kMembers)
    if (member.is_needed && !seen.contains(member.name))
      corrupt(file, fmt::format("it has no {}", member.name));
  check(manifest, file);
  return manifest;
}

}  // namespace thinwire::checkpoint
