package dev.phalanx.spark.internal;

import java.io.IOException;
import java.io.InputStream;
import java.util.Properties;

/**
 * Whether this jar can run on the Spark that it is in. This class and the plugin's own need no more than Java 8, so
 * that they can say so.
 */
public final class SparkFit {
  private static final int OLDEST_JAVA = 17;
  private static final int[] OLDEST_SPARK = {3, 5};

  private SparkFit() {}

  /** Why the jar can't run here, in a sentence without its full stop; null if it can. */
  public static String problem() {
    return problem(
        System.getProperty("java.specification.version"),
        scala.util.Properties.versionNumberString(),
        org.apache.spark.package$.MODULE$.SPARK_VERSION(),
        builtFor());
  }

  /** The same of these versions; `builtFor` is the Scala of this jar, as `2.13`. */
  static String problem(String java, String scala, String spark, String builtFor) {
    if (!isAtLeast(java, OLDEST_JAVA)) {
      return "Phalanx's jar needs Java " + OLDEST_JAVA + " or later, and this is Java " + java;
    }
    if (!isAtLeast(spark, OLDEST_SPARK)) {
      return "Phalanx's jar needs Spark 3.5 or later, and this is Spark " + spark;
    }
    if (!builtFor.isEmpty() && !scala.startsWith(builtFor + ".")) {
      return "Phalanx's jar is built for Scala " + builtFor + ", and this Spark has Scala " + scala
          + "; phalanx.jar_path() names the one for the Spark that is installed";
    }
    return null;
  }

  /** The sentence for a class or a method that this Spark doesn't have. */
  public static String unlinked(Throwable thrown) {
    return "Phalanx's jar doesn't fit Spark " + org.apache.spark.package$.MODULE$.SPARK_VERSION() + " (" + thrown + ")";
  }

  /** Whether a version is at least this one; what isn't a version is. */
  private static boolean isAtLeast(String version, int... oldest) {
    String[] parts = version.split("[^0-9]+");
    for (int i = 0; i < oldest.length && i < parts.length; i++) {
      if (parts[i].isEmpty()) {
        return true;
      }
      int part = Integer.parseInt(parts[i]);
      if (part != oldest[i]) {
        return part > oldest[i];
      }
    }
    return true;
  }

  private static String builtFor() {
    Properties found = new Properties();
    try (InputStream stream = SparkFit.class.getResourceAsStream("/phalanx.properties")) {
      if (stream != null) {
        found.load(stream);
      }
    } catch (IOException problem) {
      return "";
    }
    return found.getProperty("scala", "");
  }
}
