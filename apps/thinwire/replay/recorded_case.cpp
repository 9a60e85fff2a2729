// SPDX-License-Identifier: Apache-2.0
#include "apps/thinwire/replay/recorded_case.h"

#include <fmt/format.h>

#include <bit>
#include <fstream>

namespace thinwire::replay {

namespace {

static_assert(std::endian::native == std::endian::little,
              "recorded arrays are little-endian");

std::vector<std::byte> read_file(const std::filesystem::path& path,
                                 std::size_t bytes) {
  std::ifstream file(path, std::ios::binary);
  std::vector<std::byte> content(bytes);
  file.read(reinterpret_cast<char*>(content.data()),
            static_cast<std::streamsize>(bytes));
  const bool short_read = static_cast<std::size_t>(file.gcount()) != bytes;
  if (!file.is_open() || short_read ||
      file.peek() != std::ifstream::traits_type::eof())
    throw BrokenCase(fmt::format("{} is missing or not of {} bytes",
                                 path.filename().string(), bytes));
  return content;
}

}  // namespace

std::size_t RecordedArray::first_element(
    std::initializer_list<std::size_t> indices) const {
  if (indices.size() + 1 != shape.size())
    throw BrokenCase(fmt::format("{} has {} axes, expected {}", name,
                                 shape.size(), indices.size() + 1));
  std::size_t row = 0;
  std::size_t axis = 0;
  for (const std::size_t index : indices) {
    if (index >= shape[axis])
      throw BrokenCase(fmt::format("{}: row {} of axis {} is not recorded",
                                   name, index, axis));
    row = row * shape[axis++] + index;
  }
  return row * shape.back();
}

std::span<const float> RecordedArray::floats(
    std::initializer_list<std::size_t> indices) const {
  const auto* values = reinterpret_cast<const float*>(bytes.data());
  return {values + first_element(indices), shape.back()};
}

std::span<const std::uint8_t> RecordedArray::raw(
    std::initializer_list<std::size_t> indices) const {
  const auto* values = reinterpret_cast<const std::uint8_t*>(bytes.data());
  return {values + first_element(indices), shape.back()};
}

std::size_t RecordedArray::row_of(int rank) const {
  return shape.front() == 1 ? 0 : static_cast<std::size_t>(rank);
}

RecordedCase::RecordedCase(const std::filesystem::path& folder) {
  std::ifstream file(folder / "meta.json");
  try {
    meta_ = nlohmann::json::parse(file);
    for (const auto& [name, about] : meta_.at("files").items()) {
      // Results of another arithmetic are recorded only for people to read.
      if (name.starts_with("native.")) continue;
      RecordedArray array;
      array.name = name;
      array.shape = about.at("shape").get<std::vector<std::size_t>>();
      std::size_t bytes = about.at("dtype") == "<f4" ? 4 : 1;
      for (const std::size_t extent : array.shape) bytes *= extent;
      array.bytes = read_file(folder / name, bytes);
      arrays_.emplace(name, std::move(array));
    }
  } catch (const nlohmann::json::exception& error) {
    throw BrokenCase(fmt::format("meta.json: {}", error.what()));
  }
}

int RecordedCase::world() const { return meta_.at("world").get<int>(); }

bool RecordedCase::has(const std::string& file) const {
  return arrays_.contains(file);
}

const RecordedArray& RecordedCase::array(const std::string& file) const {
  const auto found = arrays_.find(file);
  if (found == arrays_.end())
    throw BrokenCase(fmt::format("meta.json does not list {}", file));
  return found->second;
}

std::set<std::string> RecordedCase::outputs() const {
  std::set<std::string> names;
  for (const auto& [name, array] : arrays_)
    if (name != "init.bin" && name != "grads.bin" && name != "input.bin")
      names.insert(name);
  return names;
}

}  // namespace thinwire::replay
