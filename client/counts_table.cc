// SPDX-License-Identifier: Apache-2.0
#include "client/counts_table.h"

namespace headwise::client {

std::string CountsTable(const std::vector<v1::Count>& counts, const Terminal& terminal) {
  Table table({{"count"}, {"value", Table::Align::kRight}, {"unit"}, {"convention"}});
  for (const v1::Count& count : counts) {
    table.Add({count.id(), Grouped(count.value()), count.unit(), count.convention()});
  }
  return table.Render(terminal);
}

}  // namespace headwise::client
