// Serves requests from a pool: "host" or "device", then a line each on stdin, "+BYTES" or "-N" to give
// the Nth buffer back. Prints the pages in use after each. Every buffer is filled with a number of its
// own, which must be there when it is given back, and starts at a multiple of a piece.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "pool/pool.h"

int main(int, char** arguments) {
  constexpr size_t kPage = 4096, kBytes = 2048 * kPage;
  bool device = arguments[1] == std::string("device");
  planner::Pool pool(device ? planner::device_pages(kBytes, kPage)
                            : planner::host_pages(kBytes, kPage));
  struct Buffer {
    unsigned char* at;
    size_t bytes;
  };
  std::vector<Buffer> all;
  std::string why;
  char sign = 0;
  for (size_t number = 0; std::scanf(" %c%zu", &sign, &number) == 2;) {
    if (sign == '+') {
      auto at = static_cast<unsigned char*>(pool.get(number, why));
      if (!at || size_t(at) % (device ? 256 : 64)) return std::puts("no place"), 1;
      std::memset(at, int(all.size() % 251), number);
      all.push_back({at, number});
    } else {
      Buffer buffer = all.at(number);
      for (size_t i = 0; i < buffer.bytes; i++)
        if (buffer.at[i] != number % 251) return std::puts("another's bytes"), 1;
      pool.put(buffer.at);
    }
    std::printf("%lld\n", static_cast<long long>(pool.facts().pages));
  }
}
