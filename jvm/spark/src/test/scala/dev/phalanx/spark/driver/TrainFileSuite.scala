package dev.phalanx.spark.driver

import java.io.{FileNotFoundException, IOException}
import java.nio.file.Files

import org.apache.hadoop.conf.Configuration

import dev.phalanx.spark.support.PhalanxSuite

class TrainFileSuite extends PhalanxSuite {
  private val hadoop = new Configuration(false)

  private def found(path: String, shipped: String = "/nowhere") = TrainFile.find(path, hadoop, _ => shipped)

  test("a local file is read from where it is") {
    withFolder { folder =>
      val path = python(folder, "train.py", "x = 1")
      assert(found(path).path == path)
      assert(found(path).name == "train.py")
      assert(new String(found(path).source) == "x = 1")
    }
  }

  test("a URI is read by Hadoop, and a file among Spark's by its name") {
    withFolder { folder =>
      val path = python(folder, "train.py", "x = 2")
      assert(found(s"file:$path").path == path)
      assert(new String(found(s"file://$path").source) == "x = 2")
      assert(new String(found("train-of-spark.py", shipped = path).source) == "x = 2")
    }
  }

  test("a folder with a __main__.py is a program, as for Python") {
    withFolder { folder =>
      python(folder, "__main__.py", "x = 3")
      val file = found(s"$folder/")
      assert(file.path == folder.toString)
      assert(file.main == "__main__.py")
      assert(new String(file.source) == "x = 3")
    }
  }

  test("a folder of data hides no program that Spark has shipped, which may be a folder, too") {
    withFolder { folder =>
      val data = Files.createDirectory(folder.resolve("data")).toString
      val file = python(folder, "train.py", "x = 4")
      assert(new String(found(data, shipped = file).source) == "x = 4")
      val program = Files.createDirectory(folder.resolve("program"))
      python(program, "__main__.py", "x = 5")
      for (path <- Seq(data, "program-of-spark")) {
        val train = found(path, shipped = program.toString)
        assert((train.path, train.main) == (program.toString, "__main__.py"))
        assert(new String(train.source) == "x = 5")
      }
    }
  }

  test("what is nowhere is told in a sentence") {
    withFolder { folder =>
      val missing = intercept[FileNotFoundException](found(s"$folder/none.py"))
      assert(missing.getMessage.startsWith(s"there is no training file $folder/none.py"))
      val remote = intercept[FileNotFoundException](found(s"file:$folder/none.py"))
      assert(remote.getMessage.startsWith(s"there is no training file file:$folder/none.py"))
      val directory = intercept[IOException](found(folder.toString))
      assert(directory.getMessage == s"the training file $folder is a directory without a __main__.py")
      val scheme = intercept[IOException](found("nosuch://host/train.py"))
      assert(scheme.getMessage.startsWith("the training file nosuch://host/train.py can't be read: "))
      assert(Files.isDirectory(folder))
    }
  }
}
