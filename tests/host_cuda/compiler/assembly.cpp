// Names, shared memory and rounding modes, put into the assembly that g++ made.
#include "assembly.h"

#include <map>
#include <set>
#include <sstream>
#include <stdexcept>
#include <vector>

namespace {

constexpr long MAX_STATIC_SHARED_NBYTES = 48 * 1024, MAX_DYNAMIC_SHARED_NBYTES = 227 * 1024;

std::vector<std::string> lines_of(const std::string& text) {
    std::vector<std::string> lines;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    return lines;
}

bool starts_with(const std::string& text, const std::string& prefix) { return text.rfind(prefix, 0) == 0; }

// The operand of the directive after `label`.
std::string value_after(const std::vector<std::string>& lines, const std::string& label, const std::string& directive) {
    for (size_t i = 0; i < lines.size(); ++i)
        if (lines[i] == label + ":")
            for (++i; i < lines.size(); ++i)
                if (starts_with(lines[i], "\t" + directive + "\t")) return lines[i].substr(directive.size() + 2);
    throw std::runtime_error("internal: no " + directive + " after " + label);
}

void replace_all(std::string& text, const std::string& old, const std::string& replacement) {
    for (size_t at = 0; (at = text.find(old, at)) != std::string::npos; at += replacement.size())
        text.replace(at, old.size(), replacement);
}

// Sizes of the thread-local variables, which are the shared ones.
std::map<std::string, long> shared_sizes(const std::vector<std::string>& lines) {
    std::map<std::string, long> sizes;
    bool is_shared = false;
    for (const std::string& line : lines) {
        if (starts_with(line, "\t.section") || line == "\t.text" || line == "\t.data" || line == "\t.bss")
            is_shared = starts_with(line, "\t.section\t.tbss") || starts_with(line, "\t.section\t.tdata");
        const size_t comma = line.find(", ");
        if (is_shared && starts_with(line, "\t.size\t") && comma != std::string::npos)
            sizes[line.substr(7, comma - 7)] = std::stol(line.substr(comma + 2));
    }
    return sizes;
}

// How the mangled names of the static variables of a function begin.
std::string local_prefix(const std::string& function) {
    const bool is_mangled = starts_with(function, "_Z");
    return "_ZZ" + (is_mangled ? function.substr(2) : std::to_string(function.size()) + function) + "E";
}

// Bytes of the kernel's own variables and of those that functions may share between kernels.
long static_shared_nbytes(const std::map<std::string, long>& sizes, const std::string& kernel,
                          const std::vector<std::string>& kernels) {
    long nbytes = 0;
    for (const auto& [variable, size] : sizes) {
        bool is_of_another = false;
        for (const std::string& other : kernels)
            is_of_another |= other != kernel && starts_with(variable, local_prefix(other));
        if (!is_of_another) nbytes += size;
    }
    return nbytes;
}

// Definitions of the arrays that are declared only: dynamic shared memory, all of which begins at one address.
std::string dynamic_shared(const std::string& text, const std::vector<std::string>& lines) {
    const std::string reference = "@tlsgd";
    std::set<std::string> names;
    for (size_t at = 0; (at = text.find(reference, at)) != std::string::npos; ++at) {
        const size_t before = text.find_last_of("\t ,($", at);
        names.insert(text.substr(before + 1, at - before - 1));
    }
    for (const std::string& line : lines)
        if (!line.empty() && line.back() == ':') names.erase(line.substr(0, line.size() - 1));
    if (names.empty()) return "";
    std::string result = "\t.section\t.tbss,\"awT\",@nobits\n\t.align 128\n";
    for (const std::string& name : names) result += name + ":\n";
    return result + "\t.zero\t" + std::to_string(MAX_DYNAMIC_SHARED_NBYTES) + "\n";
}

// Whether it computes or compares in double precision. Moves and bit operations have no mode, and conversions from and
// to single precision flush its operand or result in CUDA too.
bool is_double_arithmetic(const std::string& line) {
    static const std::set<std::string> mnemonics = [] {
        std::set<std::string> all = {"comisd",     "ucomisd",   "cvtsd2si",   "cvttsd2si", "cvtsd2sil",
                                     "cvttsd2sil", "cvtsd2siq", "cvttsd2siq", "cvtpd2dq",  "cvttpd2dq"};
        for (const char* operation : {"add", "sub", "mul", "div", "sqrt", "min", "max", "round", "cmp", "cmpeq",
                                      "cmplt", "cmple", "cmpunord", "cmpneq", "cmpnlt", "cmpnle", "cmpord"})
            for (const char* type : {"sd", "pd"}) all.insert(std::string(operation) + type);
        return all;
    }();
    return starts_with(line, "\t") && mnemonics.count(line.substr(1, line.find('\t', 1) - 1)) != 0;
}

// Brackets runs of double-precision arithmetic with a change of mode.
std::string with_double_in_ieee(const std::vector<std::string>& lines) {
    std::string result;
    bool is_ieee = false, has_double = false;
    for (const std::string& line : lines) {
        const bool is_double = is_double_arithmetic(line);
        if (is_double != is_ieee) {
            result += is_double ? "\tldmxcsr\t.Lhostcuda_ieee(%rip)\n" : "\tldmxcsr\t.Lhostcuda_flush(%rip)\n";
            is_ieee = is_double;
            has_double = true;
        }
        result += line + "\n";
    }
    if (has_double)
        result +=
            "\t.section\t.rodata\n\t.align 4\n"
            ".Lhostcuda_ieee:\n\t.long\t0x1f80\n.Lhostcuda_flush:\n\t.long\t0x9fc0\n";
    return result;
}

}  // namespace

std::string finish(const std::string& assembly, int num_entries, bool flushes_subnormals) {
    const std::vector<std::string> lines = lines_of(assembly);
    std::vector<std::string> names;
    for (int i = 0; i < num_entries; ++i)
        names.push_back(value_after(lines, "hostcuda_address_" + std::to_string(i), ".quad"));
    const std::map<std::string, long> sizes = shared_sizes(lines);
    std::string text = (flushes_subnormals ? with_double_in_ieee(lines) : assembly) + dynamic_shared(assembly, lines);
    for (int i = 0; i < num_entries; ++i) {
        const std::string placeholder = "hostcuda_kernel_" + std::to_string(i) + "_", &name = names[i];
        const long nbytes = static_shared_nbytes(sizes, name, names);
        if (nbytes > MAX_STATIC_SHARED_NBYTES)
            throw std::runtime_error("ptxas error   : Entry function '" + name + "' uses too much shared data (" +
                                     std::to_string(nbytes) + " bytes, " + std::to_string(MAX_STATIC_SHARED_NBYTES) +
                                     " max)");
        const std::string label = "hostcuda_attributes_" + placeholder + ":\n\t.long\t1\n";
        replace_all(text, label, label.substr(0, label.size() - 2) + std::to_string(nbytes) + "\n");
        replace_all(text, placeholder, name);
    }
    return text;
}
