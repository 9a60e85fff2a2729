// SPDX-License-Identifier: Apache-2.0
#include "commands/device_path.h"

#include <fmt/format.h>

#include "thinwire/core/dtype.h"

namespace thinwire::commands {

namespace {

// Share of a link's bytes that carry payload: 1448 of every 1538.
constexpr double kPayload = 1448.0 / 1538;
constexpr double kFp32 = 4;
constexpr double kBf16 = 2;

// Bytes per parameter, or GB per billion of them.
struct Bytes {
  double device = 0;
  double inside = 0;  // sent by a device to others of its host
  double copies = 0;
  double host = 0;
  double between = 0;  // sent by a host
};

// Records of 1024 elements also have an fp32 step size.
double record_bytes(int bits) { return bits / 8.0 + kFp32 / 1024; }

// Returns the share of an array that a rank sends in a reduce-scatter or a
// gather.
double part_of(double ranks) { return (ranks - 1) / ranks; }

Bytes exact_bf16(double gradient, double hosts, double on_host) {
  return {.device = 2 * (gradient + kBf16),
          .inside = 2 * kBf16 * part_of(on_host),
          .between = 2 * kBf16 * part_of(hosts)};
}

// Inside a host, gloo reads and writes each byte twice, both in sums and in
// gathers of fp32. The codec and its residuals take 24 bytes once.
Bytes on_host(int bits, double gradient, double hosts, double on_host) {
  constexpr double kCodec = 24;
  const double sums = 2 * kFp32 * 4 * part_of(on_host);
  return {.copies = 2 * gradient,
          .host = on_host * (2 * gradient + sums) + kCodec,
          .between = 2 * record_bytes(bits) * part_of(hosts)};
}

// Bytes per parameter that operations of torch read and write. The numbers
// cover all gradients, the rank's part, and the part that it serves. Python
// tests count these bytes. With one rank per host, a part is neither reordered
// nor averaged first, and its residuals are not gathered.
Bytes on_device(int bits, double gradient, double hosts, double on_host) {
  const bool is_4 = bits == 4;
  const double whole = (is_4 ? 54.6 : 52.1) + 3 * gradient;
  const double part = (is_4 ? 181.6 : 178.1) - (on_host > 1 ? 0 : 40);
  const double served = is_4 ? 111.1 : 110.1;
  return {.device = whole + (part + served / hosts) / on_host,
          .inside = (kFp32 + record_bytes(bits)) * part_of(on_host),
          .between = 2 * record_bytes(bits) * part_of(hosts)};
}

constexpr const char* kLine = "{:<26}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}\n";

std::string line_of(const char* name, const Bytes& bytes, double parameters,
                    const DeviceRates& rates, double link_gbps) {
  const auto ms = [&](double each, double gbytes) {
    return gbytes > 0 ? parameters * each / gbytes * 1e-6 : 0;
  };
  const double parts[] = {
      ms(bytes.device, rates.memory), ms(bytes.inside, rates.between),
      ms(bytes.copies, rates.copies), ms(bytes.host, rates.host_memory),
      ms(bytes.between, link_gbps / 8 * kPayload)};
  double all = 0;
  for (const double part : parts) all += part;
  const auto text = [](double value) { return fmt::format("{:.0f}", value); };
  return fmt::format(kLine, name, text(parts[0]), text(parts[1]),
                     text(parts[2]), text(parts[3]), text(parts[4]), text(all));
}

}  // namespace

std::string device_path(const plan::Workload& work,
                        const plan::Network& network,
                        const DeviceRates& rates) {
  const auto gradient = static_cast<double>(size_of(work.dtype));
  const double each = network.ranks_per_host;
  const double hosts = network.ranks / each;
  std::string text = fmt::format(
      "averages with DDP on {} hosts of {} devices, computed from bytes: "
      "device memory {:.4g} GB/s, between devices of a host {:.4g}, copies "
      "{:.4g}, host memory {:.4g}; milliseconds per step beside forward and "
      "backward\n",
      hosts, each, rates.memory, rates.between, rates.copies,
      rates.host_memory);
  text += fmt::format(kLine, "average", "device", "inside", "copies", "host",
                      "network", "sum");
  const auto add = [&](const char* name, const Bytes& bytes) {
    text += line_of(name, bytes, work.parameters, rates, network.gbps);
  };
  add("exact in bf16", exact_bf16(gradient, hosts, each));
  add("ddp_hook 4/4, host path", on_host(4, gradient, hosts, each));
  add("ddp_hook 8/8, device path", on_device(8, gradient, hosts, each));
  add("ddp_hook 4/4, device path", on_device(4, gradient, hosts, each));
  return text +
         "the table below, and `fastest`, are for tensors in host memory, with "
         "one rank's share of a host's cores; averages with DDP on devices "
         "take the times above\n";
}

}  // namespace thinwire::commands
